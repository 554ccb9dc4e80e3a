import logging

import pytest

from holdfast_daemon.validation.intake import Intake
from holdfast_proto.state_value import write_state
from holdfast_proto.v1 import store_pb2 as store

RUN = "r"
SPEC = store.RunSpec(run=RUN, nodes=2, ranks_per_node=1, mode=store.MODE_ACT, instance="i")
OBSERVED = store.RunSpec(run=RUN, nodes=2, instance="i")
JUNK = b"\xff\xff\xff"


def node(name: str, *ranks: int, generation: int = 1, fence: int = 0, life: int = store.LIFE_RUNNING) -> bytes:
    state = store.NodeState(run=RUN, node=name, generation=generation, fence=fence)
    for rank in ranks:
        state.ranks.add(rank=rank, life=life)
    return write_state(state)


def test_a_node_whose_state_cannot_be_parsed_is_unread_and_one_with_a_bad_value_is_not() -> None:
    intake = Intake(RUN)
    bad = store.NodeState(run=RUN, node="bad", fence=2**60)
    intake.nodes({"bad": write_state(bad), "old": bad.SerializeToString(), "kind": None}, None)
    assert intake.unread_nodes() == {"old"}
    intake.nodes({"bad": write_state(bad), "old": node("old")}, None)
    assert intake.unread_nodes() == set()


def fences(nodes: dict[str, store.NodeState]) -> dict[str, int]:
    return {name: state.fence for name, state in nodes.items()}


def test_the_last_good_state_stands_while_the_key_is_there() -> None:
    intake = Intake(RUN)
    good = {"a": node("a", 0, fence=1), "b": node("b", 1, fence=1)}
    assert fences(intake.nodes(good, SPEC)) == {"a": 1, "b": 1}
    for _ in range(3):
        assert fences(intake.nodes({**good, "b": JUNK}, SPEC)) == {"a": 1, "b": 1}
    assert intake.refusals.counts["node"] == 1  # what has not changed is not checked again
    assert fences(intake.nodes({**good, "b": node("b", 7)}, SPEC)) == {"a": 1, "b": 1}
    assert intake.refusals.counts["node"] == 2
    assert fences(intake.nodes({**good, "b": None}, SPEC)) == {"a": 1, "b": 1}
    assert intake.refusals.counts["key"] == 1
    assert fences(intake.nodes({**good, "b": node("b", 1, fence=2)}, SPEC)) == {"a": 1, "b": 2}
    assert fences(intake.nodes({"a": good["a"]}, SPEC)) == {"a": 1}
    assert fences(intake.nodes({"a": good["a"], "b": JUNK}, SPEC)) == {"a": 1}


def test_one_state_of_a_node_is_one_object() -> None:
    intake = Intake(RUN)
    first = intake.nodes({"a": node("a", 0)}, SPEC)
    assert intake.nodes({"a": node("a", 0)}, SPEC)["a"] is first["a"]
    assert intake.nodes({"a": node("a", 0, fence=1)}, SPEC)["a"] is not first["a"]


def test_of_two_nodes_that_claim_a_rank_the_one_in_its_place_has_it() -> None:
    intake = Intake(RUN)
    assert list(intake.nodes({"a": node("a", 0), "b": node("b", 0)}, SPEC, ["b", "a"])) == ["b"]
    assert intake.refusals.counts["node"] == 1
    assert list(intake.nodes({"a": node("a", 1), "b": node("b", 0)}, SPEC, ["b", "a"])) == ["a", "b"]


def test_of_two_nodes_that_claim_a_rank_the_one_that_had_it_keeps_it() -> None:
    intake = Intake(RUN)
    good = {"a": node("a", 0), "b": node("b", 1)}
    intake.nodes(good, OBSERVED)
    shown = intake.nodes({**good, "a": node("a", 0, 1, fence=5)}, OBSERVED)
    assert fences(shown) == {"a": 0, "b": 0}
    assert [rank.rank for rank in shown["a"].ranks] == [0]


def test_ranks_that_have_ended_and_other_generations_are_no_claim() -> None:
    intake = Intake(RUN)
    found = {"a": node("a", 0, life=store.LIFE_EXITED), "b": node("b", 0), "c": node("c", 0, generation=2)}
    assert list(intake.nodes(found, OBSERVED)) == ["a", "b", "c"]


def test_another_world_is_judged_anew() -> None:
    intake = Intake(RUN)
    found = {"a": node("a", 1)}
    assert list(intake.nodes(found, SPEC)) == ["a"]
    assert list(intake.nodes(found, store.RunSpec(run=RUN, nodes=1, ranks_per_node=1))) == []


def test_refusals_are_logged_once_for_each_source_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    intake = Intake(RUN)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert intake.spec(JUNK) is None
            assert intake.record(JUNK) is None
            assert intake.event(JUNK, None) is None
            assert intake.event(None, None) is None
            assert intake.incidents({b"x": JUNK, b"\xff": JUNK}) == {}
            assert intake.node_names([b"\xff", b"", b"a\nb", b"good"]) == ["good"]
    assert intake.refusals.counts == {"spec": 3, "record": 3, "incident": 6, "node": 9, "event": 6, "key": 0}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert all(line.startswith("run r: ") and "\n" not in line for line in lines)


def test_a_bad_incident_hides_no_other() -> None:
    good = store.Incident(id="0001-dead-rank", run=RUN)
    assert Intake(RUN).incidents({b"0000": JUNK, b"0001-dead-rank": good.SerializeToString()}) == {good.id: good}


def test_incidents_come_oldest_first_also_after_ten_thousand() -> None:
    made = [store.Incident(id=f"{number:04}-straggler", run=RUN) for number in (10000, 2, 9999)]
    found = Intake(RUN).incidents({one.id.encode(): one.SerializeToString() for one in made})
    assert list(found) == ["0002-straggler", "9999-straggler", "10000-straggler"]
