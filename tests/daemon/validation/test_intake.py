import logging
from collections.abc import Callable

import pytest
from google.protobuf.message import Message

from holdfast_daemon.validation.intake import Intake
from holdfast_daemon.validation.refused_values import EventNumbers
from holdfast_proto import keys
from holdfast_proto.run_key import Seal
from holdfast_proto.state_value import write_state
from holdfast_proto.v1 import store_pb2 as store
from tests.support.run_keys import NUMBERS, seal_of, sealed

RUN = "r"
SPEC = store.RunSpec(run=RUN, nodes=2, ranks_per_node=1, mode=store.MODE_ACT, instance="i")
OBSERVED = store.RunSpec(run=RUN, nodes=2, instance="i")
SEAL = seal_of(RUN)
JUNK = b"\xff\xff\xff"


def sealed_state(state: store.NodeState) -> bytes:
    return SEAL.close(keys.node(RUN, state.node), write_state(state), NUMBERS.next())


def node(name: str, *ranks: int, generation: int = 1, fence: int = 0, life: int = store.LIFE_RUNNING) -> bytes:
    state = store.NodeState(run=RUN, node=name, generation=generation, fence=fence)
    for rank in ranks:
        state.ranks.add(rank=rank, life=life)
    return sealed_state(state)


def test_a_node_whose_state_cannot_be_parsed_is_unread_and_one_with_a_bad_value_is_not() -> None:
    intake = Intake(RUN, SEAL)
    bad = store.NodeState(run=RUN, node="bad", fence=2**60)
    old = SEAL.close(keys.node(RUN, "old"), bad.SerializeToString())
    intake.nodes({"bad": sealed_state(bad), "old": old, "kind": None}, None)
    assert intake.unread_nodes() == {"old"}
    intake.nodes({"bad": sealed_state(bad), "old": node("old")}, None)
    assert intake.unread_nodes() == set()


def fences(nodes: dict[str, store.NodeState]) -> dict[str, int]:
    return {name: state.fence for name, state in nodes.items()}


def test_the_last_good_state_stands_while_the_key_is_there() -> None:
    intake = Intake(RUN, SEAL)
    good = {"a": node("a", 0, fence=1), "b": node("b", 1, fence=1)}
    bad = SEAL.close(keys.node(RUN, "b"), JUNK, NUMBERS.next())
    assert fences(intake.nodes(good, SPEC)) == {"a": 1, "b": 1}
    for _ in range(3):
        assert fences(intake.nodes({**good, "b": bad}, SPEC)) == {"a": 1, "b": 1}
    assert intake.refusals.counts["node"] == 1  # what has not changed is not checked again
    assert fences(intake.nodes({**good, "b": node("b", 7)}, SPEC)) == {"a": 1, "b": 1}
    assert intake.refusals.counts["node"] == 2
    assert fences(intake.nodes({**good, "b": None}, SPEC)) == {"a": 1, "b": 1}
    assert intake.refusals.counts["key"] == 1
    assert fences(intake.nodes({**good, "b": node("b", 1, fence=2)}, SPEC)) == {"a": 1, "b": 2}
    assert fences(intake.nodes({"a": good["a"]}, SPEC)) == {"a": 1}
    assert fences(intake.nodes({"a": good["a"], "b": bad}, SPEC)) == {"a": 1}


def test_one_state_of_a_node_is_one_object() -> None:
    intake = Intake(RUN, SEAL)
    data = node("a", 0)
    first = intake.nodes({"a": data}, SPEC)
    assert intake.nodes({"a": data}, SPEC)["a"] is first["a"]
    assert intake.nodes({"a": node("a", 0, fence=1)}, SPEC)["a"] is not first["a"]


def test_of_two_nodes_that_claim_a_rank_the_one_in_its_place_has_it() -> None:
    intake = Intake(RUN, SEAL)
    assert list(intake.nodes({"a": node("a", 0), "b": node("b", 0)}, SPEC, ["b", "a"])) == ["b"]
    assert intake.refusals.counts["node"] == 1
    assert list(intake.nodes({"a": node("a", 1), "b": node("b", 0)}, SPEC, ["b", "a"])) == ["a", "b"]


def test_of_two_nodes_that_claim_a_rank_the_one_that_had_it_keeps_it() -> None:
    intake = Intake(RUN, SEAL)
    good = {"a": node("a", 0), "b": node("b", 1)}
    intake.nodes(good, OBSERVED)
    shown = intake.nodes({**good, "a": node("a", 0, 1, fence=5)}, OBSERVED)
    assert fences(shown) == {"a": 0, "b": 0}
    assert [rank.rank for rank in shown["a"].ranks] == [0]


def test_ranks_that_have_ended_and_other_generations_are_no_claim() -> None:
    intake = Intake(RUN, SEAL)
    found = {"a": node("a", 0, life=store.LIFE_EXITED), "b": node("b", 0), "c": node("c", 0, generation=2)}
    assert list(intake.nodes(found, OBSERVED)) == ["a", "b", "c"]


def test_another_world_is_judged_anew() -> None:
    intake = Intake(RUN, SEAL)
    found = {"a": node("a", 1)}
    assert list(intake.nodes(found, SPEC)) == ["a"]
    assert list(intake.nodes(found, store.RunSpec(run=RUN, nodes=1, ranks_per_node=1))) == []


def test_refusals_are_logged_once_for_each_source_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    intake = Intake(RUN, SEAL)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert intake.spec(SEAL.close(keys.spec(RUN), JUNK), SEAL) is None
            assert intake.record(SEAL.close(keys.state(RUN), JUNK)) is None
            assert intake.event(SEAL.close(keys.events(RUN), JUNK), None, EventNumbers({})) is None
            assert intake.event(None, None, EventNumbers({})) is None
            entries = {name: SEAL.close(keys.incident(RUN, name), JUNK) for name in "xy"}
            assert intake.incidents({name.encode(): data for name, data in entries.items()}) == {}
            assert intake.node_names([b"\xff", b"", b"a\nb", b"good"]) == ["good"]
    counts = {source: count for source, count in intake.refusals.counts.items() if count}
    assert counts == {"spec": 3, "record": 3, "incident": 6, "node": 9, "event": 6}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert all(line.startswith("run r: ") and "\n" not in line for line in lines)


def test_a_bad_incident_hides_no_other() -> None:
    good = store.Incident(id="0001-dead-rank", run=RUN)
    entries = {b"0000": JUNK, good.id.encode(): sealed(keys.incident(RUN, good.id), good, run=RUN)}
    assert Intake(RUN, SEAL).incidents(entries) == {good.id: good}


def test_incidents_come_oldest_first_also_after_ten_thousand() -> None:
    made = [store.Incident(id=f"{number:04}-straggler", run=RUN) for number in (10000, 2, 9999)]
    found = Intake(RUN, SEAL).incidents(
        {one.id.encode(): sealed(keys.incident(RUN, one.id), one, run=RUN) for one in made}
    )
    assert list(found) == ["0002-straggler", "9999-straggler", "10000-straggler"]


EVENT = store.Event(node="a", launcher_end=store.LauncherEnd(code=3))
MESSAGES: dict[str, tuple[str, Message, Callable[[Intake, bytes], object]]] = {
    "spec": (keys.spec(RUN), SPEC, lambda intake, data: intake.spec(data, SEAL)),
    "record": (
        keys.state(RUN),
        store.CoordinatorState(run=RUN, phase=store.RUN_PHASE_WAITING),
        lambda intake, data: intake.record(data),
    ),
    "incident": (
        keys.incident(RUN, "0001-x"),
        store.Incident(id="0001-x", run=RUN),
        lambda intake, data: intake.incidents({b"0001-x": data}),
    ),
    "event": (keys.events(RUN), EVENT, lambda intake, data: intake.event(data, None, EventNumbers({}))),
}
FORGERIES: dict[str, Callable[[str, bytes], bytes]] = {
    "unsigned": lambda _, content: content,
    "of another key": lambda place, content: Seal(b"another").close(place, content),
    "of another run": lambda place, content: seal_of("s").close(place, content),
    "of an earlier start": lambda place, content: seal_of(RUN, "earlier").close(place, content),
    "of another place": lambda place, content: SEAL.close(f"{place}-other", content),
    "cut off": lambda place, content: SEAL.close(place, content)[:20],
    "changed": lambda place, content: SEAL.close(place, content)[:-1] + b"\xff",
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("kind", MESSAGES)
def test_what_is_not_signed_for_its_place_is_ignored_and_counted(
    kind: str, forge: Callable[[str, bytes], bytes]
) -> None:
    place, message, read = MESSAGES[kind]
    intake = Intake(RUN, SEAL)
    assert not read(intake, forge(place, message.SerializeToString()))
    assert {source for source, count in intake.refusals.counts.items() if count} == {"signature"}
    assert read(intake, sealed(place, message, run=RUN))


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_state_of_a_node_leaves_its_last_good_one(forge: Callable[[str, bytes], bytes]) -> None:
    intake = Intake(RUN, SEAL)
    intake.nodes({"a": node("a", 0, fence=1)}, SPEC)
    state = write_state(store.NodeState(run=RUN, node="a", fence=9))
    assert fences(intake.nodes({"a": forge(keys.node(RUN, "a"), state)}, SPEC)) == {"a": 1}
    assert intake.refusals.counts["signature"] == 1


def test_a_state_that_is_written_again_after_a_newer_one_is_ignored_also_when_the_node_had_gone() -> None:
    intake = Intake(RUN, SEAL)
    old, new = node("a", 0, fence=1), node("a", 0, fence=2)
    intake.nodes({"a": old}, SPEC)
    intake.nodes({"a": new}, SPEC)
    assert fences(intake.nodes({"a": old}, SPEC)) == {"a": 2}
    assert intake.nodes({}, SPEC) == {}
    assert intake.nodes({"a": old}, SPEC) == {}
    assert intake.unread_nodes() == set()
    assert intake.refusals.counts["repeated"] == 2
    assert fences(intake.nodes({"a": new}, SPEC)) == {"a": 2}


def test_an_event_counts_once_and_none_counts_after_a_newer_one_of_its_sender() -> None:
    intake = Intake(RUN, SEAL)
    refused = store.CommandRefused(reason="x")
    first, second = (sealed(keys.events(RUN), store.Event(node="a", command_refused=refused), run=RUN) for _ in "ab")
    other = sealed(keys.events(RUN), store.Event(node="b", command_refused=refused), run=RUN)
    early_end = SEAL.close(keys.events(RUN), EVENT.SerializeToString(), 7)
    numbers = EventNumbers({})
    taken = [intake.event(data, None, numbers) for data in (first, first, second, first, other, early_end, early_end)]
    assert [event.node if event else "" for event in taken] == ["a", "", "a", "", "b", "a", ""]
    assert set(numbers.newest) == {"a", "b", "a launcher"}
    assert intake.event(second, None, EventNumbers(numbers.newest)) is None, "a successor knows them from the record"
    assert intake.refusals.counts["repeated"] == 4
