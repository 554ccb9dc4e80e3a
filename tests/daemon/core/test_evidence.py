"""What stacks add to a verdict that was reached before they came."""

from holdfast_daemon.core import evidence
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
