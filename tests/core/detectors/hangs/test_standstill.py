"""Runs in which no rank moves and none is known to wait for another."""

from dataclasses import replace

from holdfast_core.detectors.deaths.late_exit import REPORT_S
from holdfast_core.detectors.hangs.standstill import Standstill
from holdfast_proto.v1 import common_pb2 as common
from tests.support.views import Ranks


def test_what_the_first_rank_does_is_said_and_nobody_is_blamed() -> None:
    ranks = Ranks(2)
    found = ranks.found(Standstill())
    everywhere = "all ranks make no progress in forward_backward of step 50, and none is known to wait for another"
    assert (found.message, list(found.culprits)) == (everywhere, [])
    for rank in ranks.ranks.values():
        rank.blocked_on.CopyFrom(common.BlockedOn(activity=common.ACTIVITY_FILE_LOCK, path="/tmp/lock"))
    ranks.stack(0, common.ACTIVITY_UNSPECIFIED, "FileBaton.wait (file_baton.py:49)")
    seen = ranks.found(Standstill())
    assert seen.message == f"{everywhere}: rank 0 waits for the lock of /tmp/lock, at FileBaton.wait (file_baton.py:49)"
    assert list(seen.culprits) == []


def test_the_last_rank_that_is_left_is_named_after_a_while_unless_training_is_over() -> None:
    ranks = Ranks(2).end(1, code=0, finished=True).set(0, stalled_s=REPORT_S - 1.0)
    assert ranks.verdict(Standstill()) is None
    found = ranks.set(0, stalled_s=1000.0).found(Standstill())
    assert (list(found.culprits), found.message) == ([0], "rank 0 makes no progress in forward_backward of step 50")
    assert ranks.set(0, phase=common.PHASE_IDLE).verdict(Standstill()) is None, "late_exit reports it"


def test_a_rank_that_is_alone_because_the_others_have_not_come_yet_is_not_named() -> None:
    ranks = Ranks(2)
    del ranks.ranks[1]
    (found,) = Standstill().see_tick(replace(ranks.view(), world_size=2)).findings
    assert list(found.verdict.culprits) == []
