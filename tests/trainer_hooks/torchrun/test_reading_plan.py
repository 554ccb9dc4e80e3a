"""Which records a node reads, by values and on a virtual clock."""

from dataclasses import replace

import pytest

from holdfast_proto.v1.meeting_pb2 import MeetingRecord
from holdfast_torchrun.meeting import Sight, first_node
from holdfast_torchrun.reading_plan import RECORDS_PER_S, ReadingPlan
from tests.trainer_hooks.torchrun.test_meeting import again, process_of, record, sight, training, world

ABC = world(1, "a", "b", "c")
NEVER_S, LONG_S = 0.0, 1e6


@pytest.mark.parametrize(
    ("seen", "first"),
    [
        pytest.param(sight(None), None, id="nobody waits"),
        pytest.param(
            sight(None, record("c"), record("b"), record("a", nodes=3)), "b", id="by name, with this --nnodes"
        ),
        pytest.param(sight(ABC, *map(again, "abc"), record("0")), "a", id="the first member"),
        pytest.param(sight(ABC, training("a"), again("c")), "a", id="the first member still trains"),
        pytest.param(sight(ABC, record("a", process="new"), again("b")), "a", id="its torchrun was started again"),
        pytest.param(sight(ABC, again("b"), record("e"), record("d")), "d", id="a spare has its place"),
        pytest.param(sight(ABC, again("b"), again("c")), "b", id="the next member, without a spare"),
        pytest.param(sight(ABC, record("b", process="new"), record("a", process="new")), "a", id="a new job"),
        pytest.param(sight(ABC, record("b", process="new"), record("0")), "0", id="a new job of other nodes"),
    ],
)
def test_the_first_node_is_the_first_member_of_the_next_world(seen: Sight, first: str | None) -> None:
    found = first_node(seen, 2)
    assert (None if found is None else found.node) == first


def partly(seen: Sight, *, has_rung: bool = False) -> Sight:
    return replace(seen, is_whole=False, has_rung=has_rung)


def waits_after(seen: Sight, node: str = "b") -> ReadingPlan:
    """Return what a node reads that waits for the first time, and has seen all once."""
    reading = ReadingPlan()
    reading.begin_to_wait(None, process_of(node), NEVER_S)
    assert reading.nodes_to_read(NEVER_S, waits=True) is None
    reading.learn(seen, seen.records[node], NEVER_S)
    return reading


AB_WAIT = sight(None, record("a"), record("b"))


def test_the_first_node_reads_all_records_each_time() -> None:
    reading = waits_after(AB_WAIT, "a")
    assert reading.nodes_to_read(NEVER_S, waits=True) is None


@pytest.mark.parametrize(
    ("seen", "read"),
    [
        pytest.param(AB_WAIT, ["a"], id="it is there"),
        pytest.param(sight(None, record("b")), None, id="it is lost"),
        pytest.param(sight(None, record("a", process="new"), record("b")), None, id="it was started again"),
        pytest.param(sight(ABC, record("a"), record("b")), None, id="a world has formed"),
    ],
)
def test_another_node_reads_the_record_of_the_first_one_until_something_changes(
    seen: Sight, read: list[str] | None
) -> None:
    reading = waits_after(AB_WAIT)
    assert reading.nodes_to_read(NEVER_S, waits=True) == ["a"]
    reading.learn(partly(seen), record("b"), NEVER_S)
    assert reading.nodes_to_read(NEVER_S, waits=True) == read


def test_a_spare_also_watches_a_member_whose_life_makes_it_a_spare() -> None:
    reading = waits_after(sight(ABC, record("a", process="new"), again("b"), record("d")), "d")
    assert reading.nodes_to_read(NEVER_S, waits=True) == ["a", "b"]
    reading.learn(partly(sight(ABC, record("a", process="new"), record("d"))), record("d"), NEVER_S)
    assert reading.nodes_to_read(NEVER_S, waits=True) is None


def test_a_node_looks_again_if_a_member_is_back_that_counted_as_lost() -> None:
    new = [record("a", process="1"), record("c", process="2")]
    reading = waits_after(sight(ABC, *new), "c")
    assert reading.nodes_to_read(NEVER_S, waits=True) == ["a"]
    reading.learn(partly(sight(ABC, again("b"), *new), has_rung=True), new[1], NEVER_S)
    assert reading.nodes_to_read(NEVER_S, waits=True) is None


def test_all_nodes_together_read_a_bounded_number_of_records_for_certainty() -> None:
    nodes = [f"n{number:04}" for number in range(2048)]
    reading = waits_after(sight(None, *map(record, nodes)), nodes[7])
    period_s = len(nodes) ** 2 / RECORDS_PER_S
    assert reading.nodes_to_read(period_s * 0.99, waits=True) == [nodes[0]]
    assert reading.nodes_to_read(period_s * 2.01, waits=True) is None


@pytest.mark.parametrize(("node", "read"), [("a", None), ("b", ["a"]), ("c", ["a"])])
def test_a_member_knows_the_first_one_before_it_has_read_anything(node: str, read: list[str] | None) -> None:
    reading = ReadingPlan()
    reading.begin_to_wait(ABC, process_of(node), NEVER_S)
    assert reading.nodes_to_read(NEVER_S, waits=True) == read


@pytest.mark.parametrize(
    ("ringer", "read"),
    [
        pytest.param(again("c"), [], id="a member waits again"),
        pytest.param(record("d"), None, id="no member"),
        pytest.param(again("c", 0), None, id="a member that has not heard of the world"),
    ],
)
def test_a_node_that_trains_reads_all_records_if_a_bell_has_no_reason(
    ringer: MeetingRecord, read: list[str] | None
) -> None:
    reading = ReadingPlan()
    assert reading.nodes_to_read(LONG_S, waits=False) == []
    reading.learn(partly(sight(ABC, training("a"), training("b"))), training("a"), LONG_S)
    assert reading.nodes_to_read(LONG_S, waits=False) == []
    reading.learn(partly(sight(ABC, training("a"), ringer), has_rung=True), training("a"), LONG_S)
    assert reading.nodes_to_read(2 * LONG_S, waits=False) == read
    reading.learn(sight(ABC, training("a"), ringer), training("a"), LONG_S)
    assert reading.nodes_to_read(2 * LONG_S, waits=False) == []


@pytest.mark.parametrize(("seen", "read"), [(sight(None, record("b")), []), (sight(ABC, record("c")), None)])
def test_while_no_world_has_formed_a_bell_needs_no_reason(seen: Sight, read: list[str] | None) -> None:
    reading = ReadingPlan()
    reading.learn(partly(seen, has_rung=True), record("a"), NEVER_S)
    assert reading.nodes_to_read(LONG_S, waits=False) == read


def test_needless_bells_do_not_keep_a_node_from_reading_all_records() -> None:
    reading = ReadingPlan()
    for now_s in range(int(LONG_S), int(LONG_S) + 100):
        reading.learn(partly(sight(ABC, training("a"), record("d")), has_rung=True), training("a"), now_s)
    assert reading.nodes_to_read(LONG_S + 1, waits=False) is None


def test_a_node_that_gives_up_reads_all_records_once_more() -> None:
    reading = waits_after(AB_WAIT)
    reading.forget()
    assert reading.nodes_to_read(NEVER_S, waits=True) is None
