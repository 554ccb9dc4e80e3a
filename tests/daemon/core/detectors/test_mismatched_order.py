"""Programs that have parted: calls in different orders, different calls, different sizes."""

import pytest

from holdfast_daemon.core.detectors.dead_rank import NAMES_PATIENCE_S, DeadRank
from holdfast_daemon.core.detectors.hung_collective import HungCollective
from holdfast_daemon.core.detectors.mismatched_order import MismatchedOrder
from holdfast_daemon.core.detectors.transport import Transport
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.core.detectors.views import NOW, Ranks

EVERYBODY = range(4)


def met() -> Ranks:
    """Four ranks that are all in call 13 of their group."""
    ranks = Ranks()
    ranks.group("0", dict.fromkeys(EVERYBODY, 13), 12)
    return ranks


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(MismatchedOrder())


def test_the_rank_that_calls_another_operation_is_the_culprit() -> None:
    ranks = met()
    ranks.called((0, 2, 3), "0", 13, "gloo:all_reduce", "[[4]]")
    ranks.called((1,), "0", 13, "gloo:broadcast", "[[4]]")
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.group, found.seq, found.op) == ([1], "0", 13, "gloo:all_reduce")
    assert list(found.calls) == [
        "ranks 0, 2, 3 in gloo:all_reduce [[4]]: call 13 of group 0",
        "rank 1 in gloo:broadcast [[4]]: call 13 of group 0",
    ]
    assert ranks.verdict(Transport()) is None


@pytest.mark.parametrize("other", [("[[5]]", "['Float']"), ("[[4]]", "['BFloat16']")], ids=["sizes", "dtypes"])
def test_sizes_and_data_types_of_a_reduction_must_agree(other: tuple[str, str]) -> None:
    ranks = met()
    ranks.called((0, 1, 3), "0", 13, "nccl:all_reduce", "[[4]]", "['Float']")
    ranks.called((2,), "0", 13, "nccl:all_reduce", *other)
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [2]


@pytest.mark.parametrize("op", ["nccl:all_to_all", "nccl:gather", "gloo:scatter"])
def test_other_sizes_are_no_mismatch_where_ranks_may_differ(op: str) -> None:
    ranks = met()
    for number in EVERYBODY:
        ranks.called((number,), "0", 13, op, f"[[{number + 1}]]")
    assert verdict(ranks) is None
    assert ranks.verdict(Transport()) is not None


def test_without_a_majority_both_sides_are_named() -> None:
    ranks = met()
    ranks.called((0, 1), "0", 13, "gloo:all_reduce")
    ranks.called((2, 3), "0", 13, "gloo:barrier")
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.confidence_ratio) == ([0, 1, 2, 3], 0.8)


def test_calls_of_groups_that_share_a_name_are_not_compared() -> None:
    ranks = Ranks()
    ranks.group("tp", {0: 5, 1: 5}, 4)
    ranks.group("tp", {2: 5, 3: 5}, 4)
    ranks.called((0, 1), "tp", 5, "gloo:all_reduce")
    ranks.called((2, 3), "tp", 5, "gloo:broadcast")
    assert verdict(ranks) is None


def test_messages_have_no_number_in_the_order_of_a_group() -> None:
    ranks = met()
    ranks.called((0,), "0", 13, "nccl:send 0->1")
    ranks.called((1,), "0", 13, "nccl:recv 1<-0")
    assert verdict(ranks) is None


def test_different_calls_speak_for_themselves_even_if_another_rank_is_missing() -> None:
    ranks = Ranks()
    ranks.group("0", {0: 13, 1: 13, 2: 13, 3: 12}, 12)
    ranks.called((0, 1), "0", 13, "gloo:all_reduce")
    ranks.called((2,), "0", 13, "gloo:broadcast")
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [2]
    assert ranks.verdict(HungCollective()) is None


def test_different_calls_are_not_judged_before_a_deadline() -> None:
    ranks = met()
    ranks.called((0, 1, 2), "0", 13, "gloo:all_reduce")
    ranks.called((3,), "0", 13, "gloo:broadcast")
    for number in EVERYBODY:
        ranks[number].stalled_s = 1.0
    assert verdict(ranks) is None


def crossed() -> Ranks:
    """Rank 1 calls in group b before group a, rank 0 the other way round."""
    ranks = Ranks(2)
    ranks.group("a", {0: 5, 1: 4}, 4)
    ranks.group("b", {0: 8, 1: 9}, 8, "mesh_dp")
    return ranks


def test_both_sides_of_crossed_calls_are_told() -> None:
    found = verdict(crossed())
    assert found is not None
    assert list(found.culprits) == [0, 1]
    assert sorted(found.calls) == [
        "rank 0 waits for 1 in collective 5 of group a",
        "rank 1 waits for 0 in collective 9 of group b (mesh_dp)",
    ]


def test_crossed_calls_are_judged_once_both_ranks_have_stalled_past_their_deadlines() -> None:
    ranks = crossed()
    ranks[0].progress.phase = common.PHASE_EVAL
    assert verdict(ranks) is None


def test_a_rank_that_computes_is_not_held_by_crossed_calls() -> None:
    ranks = crossed()
    ranks[1].thread_state = "R"
    assert verdict(ranks) is None


def test_a_rank_that_is_left_in_a_call_that_all_others_have_completed_is_the_culprit() -> None:
    ranks = Ranks()
    ranks.group("0", {0: 14, 1: 14, 2: 13, 3: 14}, 13)
    ranks[2].progress.groups[0].completed = 12
    ranks.called((2,), "0", 13, "gloo:all_reduce", "[[9]]")
    found = verdict(ranks)
    assert found is not None
    assert (list(found.culprits), found.group, found.seq, found.op) == ([2], "0", 13, "gloo:all_reduce")
    assert found.message.startswith("rank 2 is still in call 13 of group 0, which all others have completed")
    assert ranks.verdict(Transport()) is None


ABORTED = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 64 vs 4."


def test_of_ranks_that_one_abort_has_ended_the_one_that_called_with_another_size_is_the_culprit() -> None:
    ranks = met()
    ranks.end(3, signal=6, last_words=ABORTED)
    for number in (0, 1, 2):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
        ranks.called((number,), "0", 13, "gloo:all_reduce", "[[9]]" if number == 1 else "[[8]]")
    found = verdict(ranks)
    assert found is not None and list(found.culprits) == [1]
    assert ranks.verdict(DeadRank()) is None


def test_an_abort_for_a_size_is_a_death_if_nobody_says_in_which_call() -> None:
    ranks = met()
    ranks.end(3, at=NOW - NAMES_PATIENCE_S - 0.01, signal=6, last_words=ABORTED)
    assert verdict(ranks) is None
    found = ranks.verdict(DeadRank())
    assert found is not None and list(found.culprits) == [3]
