"""No rank moves, and none is known to wait for another: there is no culprit.

All ranks may compile, evaluate or read at the same time. That is why this is a report that waits long for a restart.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.naming import phase_name
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
        culprits = sorted(view.late) if view.world_size == 1 else []
        return DetectorResult(self, (hang.hang_finding(view, store.VERDICT_KIND_STANDSTILL, culprits, _message(view)),))


def _message(view: View) -> str:
    places = Counter((rank.progress.phase, rank.progress.step) for rank in view.late.values())
    (phase, step), most = places.most_common(1)[0]
    where = "before the first step" if step < 0 else f"of step {step}"
    if view.world_size == 1:
        return f"rank {min(view.late)} {hang.what_it_does(view, min(view.late))} in {phase_name(phase)} {where}"
    if view.all_stopped:
        return f"all ranks are stopped, most of them in {phase_name(phase)} {where}"
    who = "all ranks" if most == len(view.late) else f"{most} of {len(view.late)} ranks"
    return f"{who} make no progress in {phase_name(phase)} {where}, and none is known to wait for another"
