"""Calls that all ranks have entered and none leaves."""

import pytest

from holdfast_core.detectors.hangs.root_ranks import HungCollective
from holdfast_core.detectors.hangs.transport import Transport
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import Ranks


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(Transport())


def test_the_nodes_between_which_a_collective_runs_are_named() -> None:
    found = Ranks(12).group("5", {0: 9, 4: 9, 8: 9}, 8, "mesh_dp").found(Transport())
    assert (list(found.culprits), found.group, found.seq) == ([], "5", 9)
    assert found.message == (
        "all ranks of group 5 (mesh_dp) have entered call 9, and it does not complete"
        " between nodes node0, node1, node2: transport or device, not a rank"
    )


@pytest.mark.parametrize(
    ("op", "cause"),
    [
        ("gloo:broadcast", "transport or device, or they name different roots"),
        ("gloo:reduce", "transport or device, or they name different roots"),
        ("gloo:reduce_scatter_tensor", "transport or device, not a rank"),
        ("gloo:all_reduce", "transport or device, not a rank"),
    ],
)
def test_ranks_may_name_different_roots_which_no_recorder_shows(op: str, cause: str) -> None:
    ranks = Ranks(2).group("0", {0: 9, 1: 9}, 8).called((0, 1), "0", 9, op)
    assert ranks.found(Transport()).message.endswith(f": {cause}")


def test_within_one_node_no_link_is_named() -> None:
    assert "between" not in Ranks().group("0", {0: 9, 1: 9}, 8).found(Transport()).message


def test_a_message_that_was_sent_and_does_not_come_is_reported_with_both_ends() -> None:
    ranks = Ranks(8).channel(0, 4, sent=4, delivered=4, posted=4, received=3).group("tp", {4: 20, 5: 21}, 20)
    found = ranks.found(Transport())
    assert found.message.startswith(
        "rank 0 has sent message 4 of group pp, and it does not come to rank 4 between nodes node0, node1"
    )


def test_a_sender_whose_message_is_stuck_is_not_blamed_by_those_that_wait_for_it() -> None:
    ranks = Ranks(8).channel(0, 4, sent=4, delivered=3, posted=4, received=3).group("tp", {0: 20, 1: 21}, 20)
    assert verdict(ranks) is not None
    assert ranks.verdict(HungCollective()) is None


def test_a_call_that_is_queued_behind_one_that_waits_for_a_rank_is_no_failure_of_the_transport() -> None:
    ranks = Ranks().group("b", {0: 3, 1: 3}, 2).group("c", {0: 7, 2: 6}, 6)
    assert verdict(ranks) is None
    assert ranks.culprits(HungCollective()) == [2]


def test_the_call_that_has_taken_longest_is_reported() -> None:
    ranks = Ranks().group("a", {0: 3, 1: 3}, 2).group("b", {2: 8, 3: 8}, 7).set(2, stalled_s=9.0)
    assert ranks.found(Transport()).group == "b"


def test_ranks_in_an_evaluation_have_the_time_that_an_evaluation_may_take() -> None:
    ranks = Ranks().group("0", dict.fromkeys(range(4), 9), 8).set(3, phase=common.PHASE_EVAL)
    assert verdict(ranks) is None


def test_while_a_node_is_missing_the_transport_is_not_judged() -> None:
    ranks = Ranks(8).group("0", dict.fromkeys(range(8), 9), 8)
    ranks.missing = {"node1"}
    assert verdict(ranks) is None


def test_right_after_a_stall_ranks_that_have_not_reported_their_movement_yet_are_not_judged() -> None:
    ranks = Ranks().group("0", dict.fromkeys(range(4), 9), 8)
    ranks[2].progress.groups[0].completed = 9  # it kept the others waiting, and is the first to report
    assert verdict(ranks.set(2, stalled_s=0.1)) is None
    assert verdict(ranks.set(2, stalled_s=ranks[0].stalled_s)) is not None
