"""Who holds up a run whose collectives run on devices, by the recorders that were read at the suspicion.

Hosts run ahead of their devices, and wait for them where no counter shows it. So here the numbers of the reports prove
nothing: only the recorders do. Without them, NCCL's counters in the reports may name a rank with little confidence. The
rules are in ``core/device_waits``.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.device_waits.causes import Cause, Confidence, Diagnosis, Kind
from holdfast_daemon.core.device_waits.wording import next_step, reasons_of, verdict_of
from holdfast_proto.v1 import store_pb2 as store

_KINDS = {
    Kind.MISSING_RANK: store.VERDICT_KIND_HUNG_COLLECTIVE,
    Kind.DEAD_RANK: store.VERDICT_KIND_HUNG_COLLECTIVE,
    Kind.STUCK_DEVICE: store.VERDICT_KIND_HUNG_COLLECTIVE,
    Kind.INSIDE_CALL: store.VERDICT_KIND_HUNG_COLLECTIVE,
    Kind.MISMATCHED_CALL: store.VERDICT_KIND_MISMATCHED_ORDER,
    Kind.OPPOSITE_ORDER: store.VERDICT_KIND_MISMATCHED_ORDER,
    Kind.GPU_OR_NETWORK: store.VERDICT_KIND_TRANSPORT,
    Kind.UNKNOWN: store.VERDICT_KIND_STANDSTILL,
}
_RATIOS = {Confidence.HIGH: 1.0, Confidence.MEDIUM: 0.8, Confidence.LOW: 0.5}


@dataclass(frozen=True)
class DeviceCall(Detector):
    """Reports the first cause that the recorders show."""

    name: ClassVar[str] = "device_call"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once all ranks have stalled past their deadlines: one that moves may be what the others wait for."""
        if not hang.stands_still(view) or not hang.have_stalled(view, view.ranks):
            return DetectorResult(self)
        diagnosis = view.device_diagnosis
        if diagnosis is None:
            return DetectorResult(self)
        cause = next((cause for cause in diagnosis.causes if cause.kind in _KINDS), None)
        if cause is None:
            return DetectorResult(self)
        return DetectorResult(self, (hang.hang_finding(view, _verdict(view, cause, diagnosis)),))


def _verdict(view: View, cause: Cause, diagnosis: Diagnosis) -> store.Verdict:
    joint = cause.joint
    detail = store.DeviceCallDetail(
        what=verdict_of(cause),
        why=list(reasons_of(cause, diagnosis)),
        next=next_step(cause),
        suspects=cause.suspects,
        recorders=len(diagnosis.ranks),
        world_size=view.world_size,
        by_counters=not diagnosis.has_calls,
    )
    waits = [wait for wait in diagnosis.waits if wait.is_certain]
    in_call = Counter((wait.awaited, wait.joint.group, wait.joint.seq, wait.joint.op) for wait in waits)
    edges = [
        store.WaitEdge(
            waiter=wait.rank,
            awaited=wait.awaited,
            group=wait.joint.group[0],
            seq=wait.joint.seq,
            op=wait.joint.op,
            waiters=in_call[wait.awaited, wait.joint.group, wait.joint.seq, wait.joint.op],
        )
        for wait in waits
    ]
    return store.Verdict(
        kind=_KINDS[cause.kind],
        culprits=diagnosis.culprits,
        confidence_ratio=_RATIOS[cause.confidence],
        waits=hang.kept_waits(edges, cause.ranks),
        waiting_ranks=len({wait.rank for wait in waits}),
        group=joint.group[0] if joint is not None else "",
        seq=joint.seq if joint is not None else 0,
        op=joint.op if joint is not None else "",
        device_call=detail,
    )
