"""What stacks and recorders add to a verdict that was reached before they came."""

import pytest

from holdfast_core import evidence
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

LOCK = common.BlockedOn(activity=common.ACTIVITY_FILE_LOCK, path="/data/a.lock", party=common.PARTY_FOREIGN, pid=9)
CAPTURED = store.EvidenceCaptured(
    stacks=[store.StackSummary(rank=1, activity=common.ACTIVITY_FILE_LOCK, frame="load (a.py:3)", blocked_on=LOCK)]
)


def verdict(**held: object) -> store.Verdict:
    rank = store.HeldRank(
        rank=1,
        state=store.HELD_STATE_PRESENT,
        step=5,
        phase=common.PHASE_OPTIMIZER,
        **held,  # type: ignore[arg-type]
    )
    return store.Verdict(kind=store.VERDICT_KIND_HUNG_COLLECTIVE, culprits=[1], hang=store.HangDetail(ranks=[rank]))


def test_what_a_rank_waits_for_is_added_where_the_verdict_did_not_know_it() -> None:
    found = verdict()
    evidence.add(found, CAPTURED)
    assert found.message.startswith(
        "rank 1 waits in optimizer of step 5, at load (a.py:3), for the lock of /data/a.lock, which pid 9 holds"
    )
    assert found.activity == common.ACTIVITY_FILE_LOCK


def test_what_the_verdict_knew_stays() -> None:
    found = verdict(activity=common.ACTIVITY_STOPPED)
    evidence.add(found, CAPTURED)
    assert found.message.startswith("rank 1 is stopped in")
    found = verdict(
        activity=common.ACTIVITY_DISK, blocked_on=common.BlockedOn(activity=common.ACTIVITY_DISK, path="/d")
    )
    evidence.add(found, CAPTURED)
    assert found.message.startswith("rank 1 waits in optimizer of step 5, at load (a.py:3), for the disk or")


def mismatch(*ranks_of_sides: list[int]) -> store.Verdict:
    """Return a mismatch at call 7 of one group, in which no side's call has a name yet."""
    sides = [
        store.MismatchSide(ranks=ranks, call=store.CallPlace(group="dp", seq=7, op="collective"))
        for ranks in ranks_of_sides
    ]
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_MISMATCHED_ORDER,
        culprits=[rank for ranks in ranks_of_sides for rank in ranks],
        group="dp",
        seq=7,
        op="collective",
        mismatch=store.MismatchDetail(form=store.MISMATCH_FORM_DIFFERENT_CALLS, sides=sides),
    )
    for ranks in ranks_of_sides:
        verdict.waits.add(waiter=ranks[0], awaited=9, group="dp", seq=7, op="collective")
    return verdict


def call(rank: int, op: str, *, seq: int = 7, group: str = "dp", sizes: str = "") -> common.PendingCall:
    return common.PendingCall(rank=rank, group=group, seq=seq, op=op, sizes=sizes)


@pytest.mark.parametrize("first", [0, 1])
def test_the_name_of_each_call_goes_to_the_side_that_made_it(first: int) -> None:
    found = mismatch([0, 1], [2])
    pending = [call(1, "gloo:all_reduce", sizes="[[4]]"), call(2, "gloo:broadcast", sizes="[[8]]")]
    evidence.add(found, store.EvidenceCaptured(pending=[pending[first], pending[1 - first]]))
    assert [(side.call.op, side.call.sizes) for side in found.mismatch.sides] == [
        ("gloo:all_reduce", "[[4]]"),
        ("gloo:broadcast", "[[8]]"),
    ]
    # The call of the verdict itself is that of the first side, whichever name arrives first.
    assert (found.op, [edge.op for edge in found.waits]) == ("gloo:all_reduce", ["collective", "gloo:broadcast"])
    assert "ranks 0, 1 in gloo:all_reduce [[4]]" in found.message
    assert "rank 2 in gloo:broadcast [[8]]" in found.message


@pytest.mark.parametrize(
    "other",
    [call(0, "gloo:barrier", seq=8), call(0, "gloo:barrier", group="tp"), call(3, "gloo:barrier")],
    ids=["another number", "another group", "a rank of no side"],
)
def test_a_name_of_another_call_goes_to_no_side(other: common.PendingCall) -> None:
    found = mismatch([0, 1], [2])
    evidence.add(found, store.EvidenceCaptured(pending=[other]))
    assert [found.op, *(side.call.op for side in found.mismatch.sides)] == ["collective"] * 3


def test_a_name_that_is_known_stays() -> None:
    found = mismatch([0], [1])
    evidence.add(found, store.EvidenceCaptured(pending=[call(0, "gloo:all_reduce")]))
    evidence.add(found, store.EvidenceCaptured(pending=[call(0, "gloo:barrier")]))
    assert (found.op, found.mismatch.sides[0].call.op) == ("gloo:all_reduce", "gloo:all_reduce")


def test_the_first_culprit_of_a_side_that_waits_for_it_is_named_by_that_side() -> None:
    found = mismatch([0], [1])
    sides = found.mismatch.sides
    found.mismatch.form = store.MISMATCH_FORM_CIRCLE
    sides[0].call.seq, sides[0].peer, sides[1].peer = 3, 1, 0
    evidence.add(found, store.EvidenceCaptured(pending=[call(1, "recv")]))
    assert (found.op, sides[0].call.op, sides[1].call.op) == ("recv", "collective", "recv")


def test_the_black_box_of_a_stopped_rank_corrects_where_its_last_report_saw_it() -> None:
    place = store.RankPlace(rank=1, step=7, phase=common.PHASE_FORWARD_BACKWARD)
    found = verdict(activity=common.ACTIVITY_STOPPED)
    evidence.add(found, store.EvidenceCaptured(places=[place]))
    assert found.message.startswith("rank 1 is stopped in forward_backward of step 7")
    assert (found.step, found.phase) == (7, common.PHASE_FORWARD_BACKWARD)
    moves = verdict(activity=common.ACTIVITY_USER_CODE)
    evidence.add(moves, store.EvidenceCaptured(places=[place]))
    assert moves.message.startswith("rank 1 runs code of its own in optimizer of step 5")


def test_the_place_of_a_rank_that_is_stopped_next_to_a_death_is_corrected_too() -> None:
    stopped = store.HeldRank(rank=3, state=store.HELD_STATE_PRESENT, activity=common.ACTIVITY_STOPPED, step=12)
    killed = store.RankEnd(rank=1, cause=store.END_CAUSE_KILLED, signal=9, step=14, phase=common.PHASE_OPTIMIZER)
    found = store.Verdict(
        kind=store.VERDICT_KIND_DEAD_RANK,
        culprits=[1, 3],
        step=14,
        death=store.DeathDetail(ends=[killed], stopped=[stopped]),
    )
    place = store.RankPlace(rank=3, step=15, phase=common.PHASE_DATA)
    evidence.add(found, store.EvidenceCaptured(places=[place]))
    assert found.message.endswith("; rank 3 is stopped in data of step 15, too")
    assert found.step == 14
