"""How long a world waits before it loses nodes, or takes further ones."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from holdfast_proto.v1.meeting_pb2 import MeetingMember, MeetingRecord, MeetingWorld
from holdfast_torchrun.meeting import Sight
from holdfast_torchrun.rendezvous_settings import read_settings
from holdfast_torchrun.world_size import WorldSize

AFTER_S = 60.0


@pytest.fixture
def size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorldSize:
    monkeypatch.chdir(tmp_path)
    given = RendezvousParameters("holdfast", "redis://store", "r", 3, 3, shrink_to="1", resize_after=f"{AFTER_S:g}")
    return WorldSize(read_settings(given))


def record(node: str, *, waiting: bool = True, process: str = "") -> MeetingRecord:
    return MeetingRecord(node=node, process=process or node, address=node, waiting=waiting, round=1, nodes=3)


def seen(members: str, *records: MeetingRecord) -> Sight:
    world = MeetingWorld(round=1, members=[MeetingMember(node=one, process=one, address=one) for one in members])
    return Sight(world, b"", {one.node: one for one in records})


def forms(size: WorldSize, sight: Sight, now_s: float, *, is_steady: bool = True) -> str:
    return "".join(one.node for one in size.members_to_form(sight, now_s, is_steady=is_steady) or ())


LOST_C = seen("abc", record("a"), record("b"))


def test_a_world_loses_nodes_after_the_wait(size: WorldSize) -> None:
    assert [forms(size, LOST_C, now_s) for now_s in (5.0, 64.9, 65.0)] == ["", "", "ab"]


@pytest.mark.parametrize(
    ("between", "is_steady"),
    [
        pytest.param(seen("abc", record("a"), record("b"), record("c", waiting=False)), True, id="it was there"),
        pytest.param(seen("abc", record("a"), record("b", waiting=False)), True, id="another one still trains"),
        pytest.param(seen("abc", record("a")), True, id="another one is lost too"),
        pytest.param(LOST_C, False, id="Redis could not be used"),
        pytest.param(replace(LOST_C, is_whole=False), True, id="another node was the first"),
    ],
)
def test_the_wait_begins_again_if_it_is_interrupted(size: WorldSize, between: Sight, is_steady: bool) -> None:
    found = [forms(size, LOST_C, 0.0), forms(size, between, 30.0, is_steady=is_steady)]
    assert [*found, forms(size, LOST_C, 60.0), forms(size, LOST_C, 119.0)] == [""] * 4
    assert forms(size, LOST_C, 120.0) == "ab"


@pytest.mark.parametrize(
    ("sight", "formed"),
    [
        pytest.param(seen("abc", record("a"), record("b"), record("d")), "abd", id="a spare is there"),
        pytest.param(seen("ab", record("a"), record("b")), "ab", id="no member is lost"),
        pytest.param(seen("ab", record("a"), record("b"), record("c")), "abc", id="no member is lost, one came"),
        pytest.param(seen("abcde", record("f"), record("g"), record("h")), "fgh", id="a smaller new job"),
    ],
)
def test_a_world_that_loses_no_node_forms_immediately(size: WorldSize, sight: Sight, formed: str) -> None:
    assert forms(size, sight, 0.0) == formed


def test_a_smaller_world_grows_once_a_further_node_has_waited(size: WorldSize) -> None:
    one, two = seen("a", record("c")), seen("a", record("b"), record("c"))
    assert [size.may_grow(sight, "a", now_s) for sight, now_s in ((one, 0.0), (two, 59.0), (two, 60.0))] == [
        False,
        False,
        True,
    ]
    assert not size.may_grow(seen("a"), "a", 61.0)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(seen("a"), id="it was lost"),
        pytest.param(None, id="Redis could not be used"),
        pytest.param(seen("a", record("c", process="new")), id="another torchrun on the node"),
        pytest.param(replace(seen("a", record("c")), world=MeetingWorld(round=2)), id="another world"),
    ],
)
def test_a_further_node_waits_without_a_pause(size: WorldSize, between: Sight | None) -> None:
    one = seen("a", record("c"))
    assert not any(size.may_grow(sight, "a", now_s) for sight, now_s in ((one, 0.0), (between, 30.0), (one, 60.0)))
    assert size.may_grow(one, "a", 120.0)


def test_a_change_of_the_size_is_shown_once(size: WorldSize, capsys: pytest.CaptureFixture[str]) -> None:
    for nodes in (3, 3, 2, 2, 3):
        size.enter(nodes)
    assert capsys.readouterr().err.splitlines() == [
        "holdfast: run r continues with 2 of 3 nodes: none came within 60 s",
        "holdfast: run r continues with 3 of 3 nodes: further ones have come",
    ]
