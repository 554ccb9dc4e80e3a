"""No rank moves, and none is known to wait for another: there is no culprit.

All ranks may compile, evaluate or read at the same time. That is why this is a report that waits long for a restart.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class Standstill(Detector):
    """Reports where most ranks are. Names a rank only if there is no other."""

    name: ClassVar[str] = "standstill"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once all ranks have stalled past their deadlines and no rank explains it."""
        if not hang.stands_still(view) or not hang.nobody_waits(view) or view.mismatched_call is not None:
            return DetectorResult(self)
        if hang.roots(view):
            return DetectorResult(self)
        return DetectorResult(self, (hang.hang_finding(view, _verdict(view)),))


def _verdict(view: View) -> store.Verdict:
    places = Counter((rank.progress.phase, rank.progress.step) for rank in view.late.values())
    (phase, step), most = places.most_common(1)[0]
    detail = store.StandstillDetail(
        most=most,
        ranks=len(view.late),
        world_size=view.world_size,
        all_stopped=view.all_stopped,
        step=step,
        phase=phase,
    )
    culprits = sorted(view.late) if view.world_size == 1 else []
    if culprits:
        detail.only.CopyFrom(hang.held_rank(view, culprits[0]))
    elif not view.all_stopped:
        detail.example.CopyFrom(hang.held_rank(view, min(view.late)))
    return store.Verdict(kind=store.VERDICT_KIND_STANDSTILL, culprits=culprits, standstill=detail)
