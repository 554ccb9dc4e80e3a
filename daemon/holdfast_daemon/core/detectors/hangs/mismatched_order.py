"""Ranks that wait for each other, or are in different calls at one number: their programs make different calls.

Four signs. Members of a group have entered its call number ``seq`` and their recorders name different operations or,
where these must agree, different sizes or data types: that is proof, also if other ranks stand still. Or members
were aborted because they got more than they expected: see aborted_call.py. Or there is a cycle in the wait-for
graph that holds all of its ranks in their calls: they call in different orders. Or a minority of a group is left behind
in a call that all others have completed: it waits for more than they had to give.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from holdfast_daemon.core.detectors.deaths.aborted_call import AbortedCall, aborted_call, names_are_in
from holdfast_daemon.core.detectors.deaths.peer_loss import bytes_expected_and_got
from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.naming import listed, ranks_named
from holdfast_daemon.core.waits.named_calls import MismatchedCall
from holdfast_daemon.core.waits.wait_graph import ArrivedCall
from holdfast_proto.v1 import store_pb2 as store

_SIDES_SHOWN = 4


@dataclass(frozen=True)
class MismatchedOrder(Detector):
    """Reports both sides' calls; of a group, the ranks that differ from most are the culprits."""

    name: ClassVar[str] = "mismatched_order"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once the ranks in question have stalled past their deadlines, or one was aborted for what it met."""
        stands_still, aborts_are_named = hang.stands_still(view), names_are_in(view)
        if view.mismatched_call is not None and (stands_still or aborts_are_named):
            return DetectorResult(self, (_mismatched(view, view.mismatched_call),))
        aborted = aborted_call(view) if aborts_are_named else None
        if aborted is not None:
            return DetectorResult(self, (_aborted(view, aborted),))
        if not stands_still:
            return DetectorResult(self)
        cycle = set(view.wait_analysis.cycle)
        if cycle and cycle <= view.late.keys() and cycle.isdisjoint(view.outside_of_calls) and not hang.roots(view):
            return DetectorResult(self, (_circle(view),))
        left_behind = next((call for call in view.wait_analysis.everyone_arrived if call.holds_a_minority), None)
        if left_behind is not None and hang.have_stalled(view, left_behind.members) and not hang.roots(view):
            return DetectorResult(self, (_left_behind(view, left_behind),))
        return DetectorResult(self)


def _circle(view: View) -> Finding:
    cycle = view.wait_analysis.cycle
    message = f"ranks {listed(cycle)} wait for each other: their calls are in different orders, or one is missing"
    finding = hang.hang_finding(view, store.VERDICT_KIND_MISMATCHED_ORDER, list(cycle), message)
    inside = [edge for edge in view.wait_analysis.edges if edge.waiter in cycle and edge.awaited in cycle]
    for edge in inside[:_SIDES_SHOWN]:
        group = hang.group_name(view, edge.group)
        finding.verdict.calls.append(
            f"rank {edge.waiter} waits for {edge.awaited} in {edge.op} {edge.seq} of group {group}"
        )
    return finding


def _left_behind(view: View, call: ArrivedCall) -> Finding:
    where = f"call {call.seq} of group {hang.group_name(view, call.group)}"
    who = f"{ranks_named(call.held)} {'is' if len(call.held) == 1 else 'are'}"
    message = f"{who} still in {where}, which all others have completed: it made another call there, or lost data"
    finding = hang.hang_finding(view, store.VERDICT_KIND_MISMATCHED_ORDER, list(call.held), message)
    verdict, named = finding.verdict, view.ranks[call.held[0]].pending
    op = next((one.op for one in named if (one.group, one.seq) == (call.group, call.seq)), call.op)
    verdict.group, verdict.seq, verdict.op, verdict.confidence_ratio = call.group, call.seq, op, 0.8
    return finding


def _mismatched(view: View, call: MismatchedCall) -> Finding:
    most = call.sides[0][1]
    everybody = [rank for _, ranks in call.sides for rank in ranks]
    odd = sorted(set(everybody) - set(most))
    culprits = odd if 2 * len(odd) < len(everybody) else sorted(everybody)
    where = f"call {call.seq} of group {hang.group_name(view, call.group)}"
    sides = [f"{ranks_named(ranks)} in {' '.join(part for part in called if part)}" for called, ranks in call.sides]
    message = f"ranks have met in different calls: {where} finds {' and '.join(sides[:_SIDES_SHOWN])}"
    finding = hang.hang_finding(view, store.VERDICT_KIND_MISMATCHED_ORDER, culprits, message)
    finding.verdict.group, finding.verdict.seq, finding.verdict.op = call.group, call.seq, call.sides[0][0][0]
    finding.verdict.calls.extend(f"{side}: {where}" for side in sides[:_SIDES_SHOWN])
    return finding


def _aborted(view: View, found: AbortedCall) -> Finding:
    call, others, aborted = found.call, ranks_named(found.others), ranks_named(found.aborted)
    where = f"call {call.seq} of group {hang.group_name(view, call.group)}"
    if len(found.others) > 1:
        message = f"{aborted} have met in {where} with different sizes: one of them called with a wrong one"
    else:
        doubt = "" if len(found.culprits) == 1 else ": either may have called with a wrong size"
        message = f"{others} has sent more in {where} than {aborted} expected{doubt}"
    finding = hang.hang_finding(view, store.VERDICT_KIND_MISMATCHED_ORDER, list(found.culprits), message)
    finding.verdict.group, finding.verdict.seq, finding.verdict.op = call.group, call.seq, call.op
    finding.verdict.calls.append(f"{others} in {' '.join(part for part in (call.op, call.sizes) if part)}: {where}")
    finding.verdict.calls.extend(_met(rank, view.ranks[rank].exit) for rank in found.aborted[:_SIDES_SHOWN])
    return replace(finding, stands_still=False)


def _met(rank: int, ended: store.RankExit) -> str:
    sizes = bytes_expected_and_got(ended.last_words)
    met = "" if sizes is None else f": it expected {sizes[0]} bytes and got {sizes[1]}"
    return f"rank {rank} was aborted{met}"
