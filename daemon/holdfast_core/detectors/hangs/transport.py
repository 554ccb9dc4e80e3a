"""All members of a group have entered a call and it does not complete: transport or device, not a rank."""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_core.detectors.framework import Detector, DetectorResult
from holdfast_core.detectors.hangs import hang
from holdfast_core.detectors.view import View
from holdfast_core.diagnosis.hosts.wait_graph import ArrivedCall
from holdfast_core.diagnosis.wait_for_graph import RECV
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class Transport(Detector):
    """Names the group, the call, and the nodes between which it runs."""

    name: ClassVar[str] = "transport"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once all ranks of the group have stalled past their deadlines, and no rank explains it."""
        if (
            not hang.stands_still(view)
            or hang.roots(view)
            or view.mismatched_call is not None
            or view.wait_analysis.cycle
        ):
            return DetectorResult(self)
        calls = (
            call
            for call in view.wait_analysis.everyone_arrived
            if hang.have_stalled(view, call.members) and not call.holds_a_minority
        )
        stuck = next(calls, None)
        if stuck is None:
            return DetectorResult(self)
        finding = hang.hang_finding(view, transport_verdict(view, stuck))
        first = view.ranks[stuck.held[0]].progress
        finding.verdict.step, finding.verdict.phase = first.step, first.phase
        return DetectorResult(self, (finding,))


def transport_verdict(view: View, call: ArrivedCall) -> store.Verdict:
    """Return the verdict on a call that all have entered, without waits and confidence."""
    place = hang.arrived_place(view, call)
    detail = store.TransportDetail(
        form=store.TRANSPORT_FORM_CALL,
        call=place,
        nodes=sorted({view.node_of[rank] for rank in call.members if rank in view.node_of}),
    )
    if call.op == RECV:
        detail.form = store.TRANSPORT_FORM_MESSAGE
        detail.receiver, detail.sender = call.members
    return store.Verdict(
        kind=store.VERDICT_KIND_TRANSPORT, group=place.group, seq=place.seq, op=place.op, transport=detail
    )
