"""Runs in which no rank moves and none is known to wait for another."""

from holdfast_daemon.core.detectors.hangs.standstill import Standstill
from holdfast_proto.v1 import common_pb2 as common
from tests.support.views import Ranks


def test_what_the_first_rank_does_is_said_and_nobody_is_blamed() -> None:
    ranks = Ranks(2)
    found = ranks.verdict(Standstill())
    assert found is not None
    everywhere = "all ranks make no progress in forward_backward of step 50, and none is known to wait for another"
    assert (found.message, list(found.culprits)) == (everywhere, [])
    for rank in ranks.ranks.values():
        rank.blocked_on.CopyFrom(common.BlockedOn(activity=common.ACTIVITY_FILE_LOCK, path="/tmp/lock"))
    ranks.stack(0, common.ACTIVITY_UNSPECIFIED, "FileBaton.wait (file_baton.py:49)")
    seen = ranks.verdict(Standstill())
    assert seen is not None
    assert seen.message == f"{everywhere}: rank 0 waits for the lock of /tmp/lock, at FileBaton.wait (file_baton.py:49)"
    assert list(seen.culprits) == []
