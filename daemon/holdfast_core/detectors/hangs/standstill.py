"""No rank moves, and none is known to wait for another: there is no culprit.

All ranks may compile, evaluate or read at the same time. That is why this is a report that waits long for a restart.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from holdfast_core.detectors.deaths.late_exit import REPORT_S, is_training_over
from holdfast_core.detectors.framework import Detector, DetectorResult
from holdfast_core.detectors.hangs import hang
from holdfast_core.detectors.view import View
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class Standstill(Detector):
    """Reports where most ranks are. Names a rank only if there is no other: the rest of the run may have ended."""

    name: ClassVar[str] = "standstill"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once all ranks have stalled past their deadlines and no rank explains it."""
        if not hang.stands_still(view) or not hang.nobody_waits(view) or view.mismatched_call is not None:
            return DetectorResult(self)
        if hang.roots(view) or _is_ending(view):
            return DetectorResult(self)
        return DetectorResult(self, (hang.hang_finding(view, _verdict(view)),))


def _is_ending(view: View) -> bool:
    """Whether the run ends, as far as can be seen: ranks have ended well, and the others follow within their time."""
    if not view.world.ended:
        return False
    is_soon = any(rank.stalled_s < REPORT_S for rank in view.late.values())
    return is_soon or is_training_over(view.world, view.world_size)  # then late_exit.py judges


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
    is_alone = len(view.late) == 1 and len(view.ranks) == view.world_size  # else others may not have come yet
    culprits = sorted(view.late) if is_alone else []
    if culprits:
        detail.only.CopyFrom(hang.held_rank(view, culprits[0]))
    elif not view.all_stopped:
        detail.example.CopyFrom(hang.held_rank(view, min(view.late)))
    return store.Verdict(kind=store.VERDICT_KIND_STANDSTILL, culprits=culprits, standstill=detail)
