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
