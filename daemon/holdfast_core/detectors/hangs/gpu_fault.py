"""Ranks stand still, and the GPU of one has a fatal error: that rank is the reason, whatever the calls look like.

A GPU that has fallen off the bus completes nothing. Its rank may have entered the call that hangs, as all others have,
so that the recorders show no difference between them. The error of the GPU does.

A fatal error alone is no verdict: a run that trains continues. Nor is a GPU whose clocks are low.
"""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_core.detectors.framework import Detector, DetectorResult
from holdfast_core.detectors.hangs import hang
from holdfast_core.detectors.view import View
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class GpuFault(Detector):
    """Names the ranks that stand still on a GPU with a fatal error."""

    name: ClassVar[str] = "gpu_fault"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once such a rank has stalled past its deadline, and no death explains it."""
        faulty = [number for number, rank in sorted(view.late.items()) if rank.gpu.fault.fatal]
        if not faulty or not hang.stands_still(view):
            return DetectorResult(self)
        faulty.sort(key=lambda number: view.late[number].gpu.fault.unix_s)  # one error may cause the next
        verdict = store.Verdict(
            kind=store.VERDICT_KIND_HUNG_COLLECTIVE,
            culprits=faulty,
            hang=store.HangDetail(ranks=[_held(view, number) for number in faulty]),
        )
        return DetectorResult(self, (hang.hang_finding(view, verdict),))


def _held(view: View, number: int) -> store.HeldRank:
    held = hang.held_rank(view, number)
    held.gpu_fault.CopyFrom(view.late[number].gpu.fault)
    return held
