"""Which world forms, by values alone."""

import pytest

from holdfast_proto.v1.meeting_pb2 import MeetingMember, MeetingRecord, MeetingWorld
from holdfast_torchrun.meeting import Sight, describe_wait, further_nodes, is_healthy, next_members, nodes_to_join


def process_of(node: str) -> str:
    return f"process-{node}"


def record(node: str, *, waiting: bool = True, round_: int = 0, process: str = "", nodes: int = 2) -> MeetingRecord:
    return MeetingRecord(
        node=node,
        process=process or process_of(node),
        address=f"{node}.net",
        waiting=waiting,
        round=round_,
        nodes=nodes,
    )


def again(node: str, round_: int = 1) -> MeetingRecord:
    return record(node, round_=round_)


def training(node: str, round_: int = 1) -> MeetingRecord:
    return record(node, waiting=False, round_=round_)


def world(round_: int, *nodes: str, closed_by: str = "") -> MeetingWorld:
    members = [MeetingMember(node=node, process=process_of(node), address=f"{node}.net") for node in nodes]
    return MeetingWorld(round=round_, members=members, store_port=1, closed_by=closed_by)


def sight(formed: MeetingWorld | None, *records: MeetingRecord) -> Sight:
    return Sight(formed, b"", {one.node: one for one in records})


AB = world(1, "a", "b")


@pytest.mark.parametrize(
    ("seen", "formed"),
    [
        pytest.param(sight(None, record("b")), None, id="too few for the first world"),
        pytest.param(sight(None, record("c"), record("b"), record("a")), ["a", "b"], id="the first by name, a spare"),
        pytest.param(sight(None, record("a"), record("b", nodes=3)), None, id="another --nnodes"),
        pytest.param(sight(AB, again("a"), training("b"), record("c")), None, id="a member still trains"),
        pytest.param(sight(AB, again("a"), record("b"), record("c")), None, id="a member has not seen its world yet"),
        pytest.param(sight(AB, again("b"), again("a"), record("0")), ["a", "b"], id="members before spares"),
        pytest.param(sight(world(1, "b", "a"), again("a"), again("b")), ["b", "a"], id="members keep their ranks"),
        pytest.param(sight(AB, again("b"), record("d"), record("c")), ["c", "b"], id="a spare has the lost rank"),
        pytest.param(sight(AB, again("b")), None, id="no spare for a lost member"),
        pytest.param(sight(AB, again("a"), record("b", process="new")), ["a", "b"], id="a torchrun started again"),
        pytest.param(sight(world(1, "a", "b", "c"), again("a"), again("b"), again("c")), None, id="another size"),
        pytest.param(sight(AB, record("a", process="1"), record("b", process="2")), ["a", "b"], id="a new job"),
        pytest.param(sight(AB, record("c"), record("d")), ["c", "d"], id="a new job, all of the old one are lost"),
        pytest.param(sight(world(9, "a", "b", closed_by="a"), record("c"), record("d")), ["c", "d"], id="after an end"),
        pytest.param(sight(world(9, "a", "b", closed_by="a"), training("b", 9), record("c"), record("d")), None,
                     id="an ended job has a node that still ends"),
        pytest.param(sight(None, record("a"), record("b"), training("c", 4)), None, id="Redis has lost the world"),
    ],
)  # fmt: skip
def test_a_world_forms_if_all_that_are_alive_wait(seen: Sight, formed: list[str] | None) -> None:
    members = next_members(seen, 2, is_steady=True)
    assert (None if members is None else [member.node for member in members]) == formed


ABC = world(1, "a", "b", "c")


def of_four(node: str, round_: int = 1) -> MeetingRecord:
    return record(node, round_=round_, nodes=4)


@pytest.mark.parametrize(
    ("seen", "formed"),
    [
        pytest.param(sight(ABC, of_four("c"), of_four("a")), ["a", "c"], id="those that are left keep their order"),
        pytest.param(sight(ABC, of_four("c")), None, id="too few are left"),
        pytest.param(sight(ABC, of_four("a"), of_four("c"), record("b", waiting=False, round_=1, nodes=4)), None,
                     id="a member still trains"),
        pytest.param(sight(ABC, of_four("a"), of_four("c"), of_four("d", 0)), ["a", "d", "c"],
                     id="a spare has the lost rank"),
        pytest.param(sight(ABC, of_four("c"), of_four("d", 0)), ["d", "c"], id="spares that are not enough"),
        pytest.param(sight(ABC, *map(of_four, "abc"), of_four("0", 0), of_four("1", 0)), ["a", "b", "c", "0"],
                     id="further nodes at the end, up to all"),
        pytest.param(sight(ABC, *map(of_four, "abc")), ["a", "b", "c"], id="the further node has left again"),
        pytest.param(sight(ABC, *map(of_four, "abc"), record("d", nodes=5)), ["a", "b", "c"], id="another --nnodes"),
        pytest.param(sight(world(1, *"abcd"), of_four("b"), record("a", process="new", nodes=4)), ["a", "b"],
                     id="a lost member that is back"),
        pytest.param(sight(world(1, *"abcde"), *map(of_four, "abcde")), None, id="a larger world of another job"),
        pytest.param(sight(world(1, "a"), of_four("a"), of_four("b", 0)), None, id="a smaller world of another job"),
        pytest.param(sight(world(1, "a", "b", "c", closed_by="b"), of_four("a"), of_four("c")), None, id="an end"),
        pytest.param(sight(ABC, of_four("d", 0), of_four("e", 0), of_four("f", 0)), None, id="a new job waits for all"),
    ],
)  # fmt: skip
def test_a_later_world_may_have_fewer_nodes_if_the_user_says_so(seen: Sight, formed: list[str] | None) -> None:
    members = next_members(seen, 4, is_steady=True, fewest=2)
    assert (None if members is None else [member.node for member in members]) == formed


def test_a_world_loses_no_node_after_an_outage_of_redis_for_the_time_of_a_lease() -> None:
    assert next_members(sight(ABC, of_four("a"), of_four("c")), 4, is_steady=False, fewest=2) is None


@pytest.mark.parametrize(
    ("seen", "process", "further"),
    [
        pytest.param(sight(world(1, "b"), training("b"), record("c"), record("a")), "b", ["a", "c"], id="by name"),
        pytest.param(sight(world(1, "b"), training("b"), training("a")), "b", [], id="it does not wait"),
        pytest.param(sight(world(1, "b"), training("b"), record("a", nodes=3)), "b", [], id="another --nnodes"),
        pytest.param(sight(AB, training("a"), record("c")), "a", [], id="the world is complete"),
        pytest.param(sight(world(1, "b", closed_by="b"), record("a")), "b", [], id="the run has ended"),
        pytest.param(sight(world(1, "b"), record("a")), "a", [], id="no member decides"),
        pytest.param(sight(None, record("a")), "a", [], id="Redis is empty"),
    ],
)
def test_the_first_member_of_a_smaller_world_sees_who_could_join(seen: Sight, process: str, further: list[str]) -> None:
    assert [one.node for one in further_nodes(seen, process_of(process), 2)] == further


def test_a_member_that_is_not_the_first_leaves_growing_to_that_one() -> None:
    seen = sight(AB, *(record(node, waiting=False, round_=1, nodes=3) for node in "ab"), record("c", nodes=3))
    assert [len(further_nodes(seen, process_of(node), 3)) for node in "ab"] == [1, 0]


def test_a_member_of_the_next_world_is_the_torchrun_that_waits_now() -> None:
    members = next_members(sight(AB, again("a"), record("b", process="new")), 2, is_steady=True)
    assert members is not None
    assert [(one.process, one.address) for one in members] == [("process-a", "a.net"), ("new", "b.net")]


@pytest.mark.parametrize(
    ("seen", "forms"),
    [
        (sight(AB, again("b"), record("c")), False),
        (sight(AB, record("c"), record("d")), False),
        (sight(AB, again("a"), again("b")), True),
        (sight(None, record("a"), record("b")), True),
    ],
)
def test_after_an_outage_of_redis_nobody_counts_as_lost_for_the_time_of_a_lease(seen: Sight, forms: bool) -> None:
    assert (next_members(seen, 2, is_steady=False) is not None) is forms


@pytest.mark.parametrize(
    ("seen", "number"),
    [
        pytest.param(sight(AB, training("a"), training("b"), record("c")), 0, id="a spare waits"),
        pytest.param(sight(AB, training("a"), again("b")), 1, id="a member waits again"),
        pytest.param(sight(AB, training("a"), record("b")), 0, id="a member has not heard of its world"),
        pytest.param(sight(AB, training("a"), record("b", process="new")), 1, id="a torchrun started again"),
        pytest.param(sight(AB, training("a")), 0, id="a member is lost: its ranks fail or hang, and that is seen"),
        pytest.param(sight(world(2, "b", "c"), training("a"), training("b", 2)), 1, id="a newer world"),
        pytest.param(sight(world(1, "a", "b", closed_by="b"), training("a"), again("b")), 0, id="the run has ended"),
        pytest.param(sight(None, training("a")), 0, id="Redis is empty"),
    ],
)
def test_only_members_and_newer_worlds_stop_a_world(seen: Sight, number: int) -> None:
    assert nodes_to_join(seen, process_of("a"), 1) == number


def test_a_spare_waits_for_nothing_while_the_others_train() -> None:
    assert is_healthy(sight(AB, training("a"), training("b"), record("c")))
    assert not is_healthy(sight(AB, training("a"), again("b"), record("c")))
    assert not is_healthy(sight(AB, record("c")))
    assert not is_healthy(sight(None, record("c")))


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (sight(None), "no node waits, 2 of 2 nodes missing"),
        (sight(None, record("a")), "a waits, 1 of 2 nodes missing"),
        (sight(AB, again("a")), "a waits, b of the last world cannot be seen"),
        (sight(AB, again("a"), training("b")), "a waits, b of the last world has not come back"),
        (
            sight(None, record("a"), record("b", nodes=3)),
            "a waits, 1 of 2 nodes missing, b was started with another --nnodes",
        ),
    ],
)
def test_who_waits_in_vain_is_told_for_whom(seen: Sight, line: str) -> None:
    assert describe_wait(seen, 2) == line
