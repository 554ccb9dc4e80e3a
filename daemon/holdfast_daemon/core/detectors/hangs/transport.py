"""All members of a group have entered a call and it does not complete: transport or device, not a rank."""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.naming import listed
from holdfast_daemon.core.waits.meeting import RECV
from holdfast_daemon.core.waits.wait_graph import ArrivedCall
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
        finding = hang.hang_finding(view, store.VERDICT_KIND_TRANSPORT, [], _message(view, stuck))
        first = view.ranks[stuck.held[0]].progress
        verdict = finding.verdict
        verdict.group, verdict.seq, verdict.op = stuck.group, stuck.seq, stuck.op
        verdict.step, verdict.phase = first.step, first.phase
        return DetectorResult(self, (finding,))


def _message(view: View, call: ArrivedCall) -> str:
    nodes = sorted({view.node_of[rank] for rank in call.members if rank in view.node_of})
    between = f" between nodes {listed(nodes)}" if len(nodes) > 1 else ""
    group = f"group {hang.group_name(view, call.group)}"
    if call.op == RECV:
        receiver, sender = call.members
        what = f"rank {sender} has sent message {call.seq} of {group}, and it does not come to rank {receiver}"
    else:
        what = f"all ranks of {group} have entered call {call.seq}, and it does not complete"
    return f"{what}{between}: transport or device, not a rank"
