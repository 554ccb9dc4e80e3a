"""Ranks that have left out a call, and are a collective behind the others or a step ahead of them."""

import pytest

from holdfast_core.detectors.deaths.dead_rank import DeadRank
from holdfast_core.detectors.hangs.mismatched_order import MismatchedOrder
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import Ranks

EVERYBODY = range(4)


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(MismatchedOrder())


def left_after(step: int, phase: "common.Phase") -> Ranks:
    """Return ranks in the last call of step 50. Rank 2 has made one call fewer and has left after ``step``."""
    ranks = Ranks().group("0", {0: 51, 1: 51, 2: 50, 3: 51}, 50).end(2, code=0, finished=True)
    ranks[2].exit.step = ranks[2].progress.step = step
    ranks[2].exit.phase = ranks[2].progress.phase = phase
    return ranks


@pytest.mark.parametrize(("step", "phase"), [(51, common.PHASE_DATA), (50, common.PHASE_IDLE)])
def test_a_rank_that_left_out_a_call_and_has_done_all_steps_is_a_mismatch_and_no_death(
    step: int, phase: "common.Phase"
) -> None:
    ranks = left_after(step, phase)
    assert ranks.verdict(DeadRank()) is None
    found = ranks.found(MismatchedOrder())
    assert (list(found.culprits), found.mismatch.form) == ([2], store.MISMATCH_FORM_BEHIND)
    assert found.message == (
        f"rank 2 has left training after step {step} with at least 1 call fewer in group 0 than the others,"
        " and ranks 0, 1, 3 wait in collective 51 of group 0: a part of a step was left out there, or made twice here"
    )


def test_a_left_out_call_is_a_mismatch_too_when_the_others_fail_in_their_last_call() -> None:
    ranks = left_after(50, common.PHASE_IDLE)
    for number in (0, 1, 3):
        ranks.end(number, code=1, last_words="RuntimeError: Connection closed by peer")
    assert ranks.verdict(DeadRank()) is None
    found = ranks.found(MismatchedOrder())
    assert (list(found.culprits), found.mismatch.form) == ([2], store.MISMATCH_FORM_BEHIND)


def test_a_rank_that_left_in_the_middle_of_the_step_has_left_early() -> None:
    ranks = left_after(50, common.PHASE_OPTIMIZER)
    assert verdict(ranks) is None
    assert ranks.verdict(DeadRank()) is not None


def test_a_rank_that_is_in_the_call_of_the_others_one_step_later_has_left_out_a_call() -> None:
    found = Ranks().group("0", dict.fromkeys(range(4), 51), 50).set(3, step=51).found(MismatchedOrder())
    assert (list(found.culprits), found.mismatch.form) == ([3], store.MISMATCH_FORM_BEHIND)
    assert found.message == (
        "rank 3 is in collective 51 of group 0 in step 51, and ranks 0, 1, 2 in step 50:"
        " a part of a step was left out by some, or made twice by others"
    )


def past_the_call(op: str) -> Ranks:
    """Return ranks in call 24, which is complete on rank 1 alone: it is one step further."""
    ranks = Ranks().group("0", dict.fromkeys(range(4), 24), 23)
    ranks[1].progress.groups[0].completed = 24
    ranks.set(1, step=51).called((0, 2, 3), "0", 24, op)
    return ranks


def test_a_rank_that_is_past_a_call_of_the_step_before_has_left_out_a_call() -> None:
    found = past_the_call("gloo:all_reduce").found(MismatchedOrder())
    assert (list(found.culprits), found.mismatch.form) == ([1], store.MISMATCH_FORM_BEHIND)
    assert found.message == (
        "rank 1 is past gloo:all_reduce 24 of group 0 and in step 51, and ranks 0, 2, 3 are still in it in step 50:"
        " a part of a step was left out by some, or made twice by others"
    )


@pytest.mark.parametrize("op", ["gloo:broadcast", ""])
def test_a_rank_that_sent_in_a_broadcast_or_in_a_call_without_a_name_may_be_past_it(op: str) -> None:
    ranks = past_the_call(op)
    if not op:
        for number in EVERYBODY:
            del ranks[number].pending[:]
    assert verdict(ranks) is None


def test_a_rank_that_has_just_come_and_trains_on_has_left_out_nothing() -> None:
    assert verdict(past_the_call("gloo:all_reduce").set(1, stalled_s=0.1)) is None


def test_a_broadcast_of_another_group_with_the_same_number_excuses_nobody() -> None:
    ranks = past_the_call("gloo:all_reduce").called((0,), "1", 24, "gloo:broadcast")
    assert ranks.culprits(MismatchedOrder()) == [1]


def test_only_ranks_that_lack_as_many_calls_share_one_sentence() -> None:
    ranks = left_after(50, common.PHASE_IDLE)
    ranks[3].progress.groups[0].enqueued = ranks[3].progress.groups[0].completed = 48
    ranks.end(3, code=0, finished=True)
    ranks[3].exit.phase = ranks[3].progress.phase = common.PHASE_IDLE
    found = ranks.found(MismatchedOrder())
    assert (list(found.culprits), found.mismatch.sides[1].missed_calls) == ([2], 1)
