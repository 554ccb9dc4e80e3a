"""Who holds up a run whose collectives run on devices, by the recorders that were read at the suspicion.

Hosts run ahead of their devices, and wait for them where no counter shows it. So here the numbers of the reports prove
nothing: only the recorders do. Without them, NCCL's counters in the reports may name a rank with little confidence. The
rules are in ``diagnosis/devices``.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from holdfast_core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_core.detectors.hangs import hang
from holdfast_core.detectors.hangs.mismatched_order import different_calls
from holdfast_core.detectors.hangs.root_ranks import root_verdict
from holdfast_core.detectors.hangs.transport import transport_verdict
from holdfast_core.detectors.view import View
from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Confidence, Diagnosis
from holdfast_core.diagnosis.hosts.wait_graph import ArrivedCall, MissedCall
from holdfast_core.diagnosis.operations import MismatchedCall
from holdfast_core.diagnosis.wait_for_graph import SharedCall
from holdfast_core.texts.device_calls import next_step, reasons_of
from holdfast_proto.v1 import store_pb2 as store

_KINDS = {
    CauseKind.MISSING_RANK: store.VERDICT_KIND_HUNG_COLLECTIVE,
    CauseKind.DEAD_RANK: store.VERDICT_KIND_HUNG_COLLECTIVE,
    CauseKind.STUCK_DEVICE: store.VERDICT_KIND_HUNG_COLLECTIVE,
    CauseKind.INSIDE_CALL: store.VERDICT_KIND_HUNG_COLLECTIVE,
    CauseKind.MISMATCHED_CALL: store.VERDICT_KIND_MISMATCHED_ORDER,
    CauseKind.OPPOSITE_ORDER: store.VERDICT_KIND_MISMATCHED_ORDER,
    CauseKind.GPU_OR_NETWORK: store.VERDICT_KIND_TRANSPORT,
    CauseKind.UNKNOWN: store.VERDICT_KIND_STANDSTILL,
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
        return DetectorResult(self, (_finding(view, cause, diagnosis),) if cause is not None else ())


def _finding(view: View, cause: Cause, diagnosis: Diagnosis) -> Finding:
    """Return what is said of such a cause on any backend, with what the recorders show."""
    shared = cause.call
    verdict = _verdict_of_all_backends(view, cause, diagnosis)
    is_known_on_hosts = verdict.WhichOneof("detail") is not None
    verdict.ClearField("waits")  # of groups on hosts, whose counters show nothing of calls on devices
    waits = [wait for wait in diagnosis.waits if wait.is_certain]
    in_call = Counter((wait.awaited, wait.call.group, wait.call.seq, wait.call.op) for wait in waits)
    edges = [
        store.WaitEdge(
            waiter=wait.rank,
            awaited=wait.awaited,
            group=wait.call.group[0],
            seq=wait.call.seq,
            op=wait.call.op,
            waiters=in_call[wait.awaited, wait.call.group, wait.call.seq, wait.call.op],
        )
        for wait in waits
    ]
    verdict.MergeFrom(
        store.Verdict(
            confidence_ratio=_RATIOS[cause.confidence],
            waits=hang.kept_waits(edges, cause.ranks),
            waiting_ranks=len({wait.rank for wait in waits}),
            group=shared.group[0] if shared is not None else "",
            seq=shared.seq if shared is not None else 0,
            op=shared.op if shared is not None else "",
            device_call=store.DeviceCallDetail(
                cause=store.DEVICE_CAUSE_UNSPECIFIED if is_known_on_hosts else cause.device_cause,
                ranks=() if is_known_on_hosts else cause.named,
                why=[] if verdict.HasField("mismatch") else reasons_of(cause, diagnosis),
                next=next_step(cause),
                suspects=cause.suspects,
                recorders=len(diagnosis.ranks),
                world_size=view.world_size,
                by_counters=not diagnosis.has_calls,
            ),
        )
    )
    return hang.hang_finding(view, verdict)


def _verdict_of_all_backends(view: View, cause: Cause, diagnosis: Diagnosis) -> store.Verdict:
    """Return the verdict with the detail that it has on every backend; without one, if only devices know the cause."""
    shared = cause.call
    match cause.kind:
        case CauseKind.MISSING_RANK | CauseKind.DEAD_RANK:
            missed = {
                rank: call for rank in diagnosis.culprits if (call := _missed(rank, cause, diagnosis)) is not None
            }
            return root_verdict(view, diagnosis.culprits, missed)
        case CauseKind.GPU_OR_NETWORK if shared is not None and shared.seq:
            name, members = shared.group
            return transport_verdict(view, ArrivedCall(name, shared.seq, members, shared.op, members))
        case CauseKind.MISMATCHED_CALL if shared is not None and shared.seq:
            sides = tuple(((signature, "", ""), ranks) for signature, ranks in shared.sides)
            return different_calls(view, MismatchedCall(shared.group[0], shared.seq, sides), diagnosis.culprits).verdict
    return store.Verdict(kind=_KINDS[cause.kind], culprits=diagnosis.culprits)


def _missed(rank: int, cause: Cause, diagnosis: Diagnosis) -> MissedCall | None:
    """Return the call in which most ranks wait for ``rank``; None: nothing shows one."""
    shared_calls: list[SharedCall] = [] if cause.call is None else [cause.call]
    shared_calls = [wait.call for wait in diagnosis.waits if wait.awaited == rank and wait.is_certain] or shared_calls
    longest = max(shared_calls, key=lambda shared: len(shared.waiters), default=None)
    if longest is None:
        return None
    everywhere = {waiter for shared in shared_calls for waiter in shared.waiters}
    elsewhere = len(everywhere.difference(longest.waiters))
    return MissedCall(rank, longest.group[0], longest.seq, longest.op or "call", longest.waiters, elsewhere)
