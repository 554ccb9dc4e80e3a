import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast_core.model import CheckpointRequest, StopRequest
from holdfast_daemon.replay.recorded_tick import decode_request, decode_state, encode_request, encode_state
from holdfast_daemon.replay.state_codec import Codec, CodecError
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World


class Shape:
    """A family of classes. Only its members are known."""


@dataclass(frozen=True)
class Circle(Shape):
    radius: float = 1.0


@dataclass(frozen=True)
class Square(Shape):
    sides: tuple[int, int] = (1, 1)


@dataclass(frozen=True, kw_only=True)
class Everything:
    number: float = 0.0
    maybe: int | None = None
    phase: "common.Phase" = common.PHASE_DATA
    pairs: tuple[tuple[str, int], ...] = ()
    digests: frozenset[bytes] = frozenset()
    seen: frozenset[int] = frozenset()
    by_rank: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    message: store.Verdict | None = None
    either: Circle | Square = field(default_factory=Circle)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    _hidden: tuple[bool, ...] = ()


CODEC = Codec({Shape: {"circle": Circle, "square": Square}})


def through_json(value: Any, hint: Any) -> Any:
    return CODEC.decode(json.loads(json.dumps(CODEC.encode(value, hint))), hint)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"number": 0.1 + 0.2, "maybe": 3, "phase": common.PHASE_EVAL},
        {"number": -math.inf, "pairs": (("a", 1), ("b", 2)), "seen": frozenset({3, 1, 2})},
        {"by_rank": {7: {"loss": 2.5}, 0: {}}, "_hidden": (True, False)},
        {"digests": frozenset({b"", b"\x00\xff"})},
        {"message": store.Verdict(culprits=[3, 1], message="ü")},
        {"either": Square((2, 3)), "shapes": {"x": Circle(0.5), "y": Square()}},
    ],
)
def test_what_goes_in_comes_out(fields: dict[str, Any]) -> None:
    value = Everything(**fields)
    assert through_json(value, Everything) == value


def test_a_number_that_is_none_is_carried_too() -> None:
    assert math.isnan(through_json(Everything(number=math.nan), Everything).number)


def test_what_is_not_of_its_declared_type_is_refused() -> None:
    with pytest.raises(CodecError, match="Everything holds what is not of its declared type: KeyError"):
        CODEC.encode(Everything(shapes={"x": Shape()}), Everything)
    with pytest.raises(CodecError, match="Everything holds what is not of its declared type"):
        CODEC.encode(Everything(by_rank=5), Everything)  # type: ignore[arg-type]


def test_a_field_that_an_older_version_did_not_write_takes_its_default() -> None:
    data = CODEC.encode(Everything(maybe=3), Everything)
    del data["maybe"]
    assert CODEC.decode(data, Everything) == Everything()


def test_what_is_not_of_this_version_is_refused() -> None:
    data = CODEC.encode(Everything(), Everything)
    with pytest.raises(CodecError, match=r"Extra fields .* Everything: more"):
        CODEC.decode({**data, "more": 1}, Everything)
    with pytest.raises(CodecError, match="'triangle' is none of circle, square"):
        CODEC.decode({**data, "shapes": [["x", {"is": "triangle"}]]}, Everything)
    with pytest.raises(CodecError, match=r"'no base64' is no Verdict @ Everything\.message"):
        CODEC.decode({**data, "message": "no base64"}, Everything)
    with pytest.raises(CodecError, match=r"@ Everything\.seen"):
        CODEC.decode({**data, "seen": 5}, Everything)
    for name, wrong in (("maybe", "1"), ("number", True), ("phase", 1.0), ("_hidden", [1])):
        with pytest.raises(CodecError, match=f"is no .* @ Everything.{name}"):
            CODEC.decode({**data, name: wrong}, Everything)


def test_a_core_that_has_seen_a_run_comes_back_whole() -> None:
    world = World(nodes=2)
    world.until("starting")
    world.train(40)
    world.hang(2)
    world.until("gathering")
    world.until("starting")
    world.train(3)
    world.end(1, code=1, last_words="ValueError: bad sample")
    world.until("gathering")
    state = decode_state(json.loads(json.dumps(encode_state(world.state))))
    for each in dataclasses.fields(world.state):
        assert getattr(state, each.name) == getattr(world.state, each.name), each.name


@pytest.mark.parametrize("decode", [decode_request, decode_state])
@pytest.mark.parametrize("data", [None, 5, "ab", [], [1], {"is": "triangle"}, {"is": "StopRequest", "grace_s": "a"}])
def test_whatever_else_a_recording_holds_is_refused_in_one_way(decode: Callable[[Any], Any], data: Any) -> None:
    with pytest.raises(CodecError):
        decode(data)


@pytest.mark.parametrize("request_", [CheckpointRequest(), StopRequest(30.0)])
def test_requests_of_operators_are_carried(request_: Any) -> None:
    assert decode_request(json.loads(json.dumps(encode_request(request_)))) == request_
