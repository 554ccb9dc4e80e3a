"""Ranks that wait for each other, or are in different calls at one number: their programs make different calls.

Four signs. Members of a group have entered its call number ``seq`` and their recorders name different operations or,
where these must agree, different sizes or data types: that is proof, also if other ranks stand still. Or members
were aborted because they got more than they expected: see aborted_call.py. Or there is a cycle in the wait-for
graph that holds all of its ranks in their calls: they call in different orders. Or a minority of a group is left behind
in a call that all others have completed: it waits for more than they had to give.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from holdfast_daemon.core.detectors.deaths.aborted_call import AbortedCall, aborted_call, names_are_in
from holdfast_daemon.core.detectors.deaths.peer_loss import bytes_expected_and_got
from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.waits.named_calls import MismatchedCall, Signature
from holdfast_daemon.core.waits.wait_graph import ArrivedCall
from holdfast_proto.v1 import store_pb2 as store


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


def _finding(
    view: View, culprits: Sequence[int], detail: store.MismatchDetail, confidence_ratio: float = 0.0
) -> Finding:
    """Return the finding of a mismatch; its call is that of the first side."""
    for side in detail.sides:
        stack = view.stacks.get(side.ranks[0])
        side.frame = stack.frame if stack is not None else ""
    call = detail.sides[0].call
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_MISMATCHED_ORDER,
        culprits=culprits,
        confidence_ratio=confidence_ratio,
        group=call.group,
        seq=call.seq,
        op=call.op,
        mismatch=detail,
    )
    return hang.hang_finding(view, verdict)


def _circle(view: View) -> Finding:
    cycle = view.wait_analysis.cycle
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_CIRCLE)
    inside = {(edge.waiter, edge.awaited): edge for edge in reversed(view.wait_analysis.edges)}
    for waiter, awaited in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        edge = inside.get((waiter, awaited))
        if edge is not None:
            detail.sides.add(ranks=[waiter], call=_edge_place(view, edge), peer=awaited)
    return _finding(view, cycle, detail)


def _edge_place(view: View, edge: store.WaitEdge) -> store.CallPlace:
    named = hang.pending_call(view, edge.waiter, edge.group, edge.seq)
    return _place(view, edge.group, edge.seq, (named.op, named.sizes, named.dtypes) if named else (edge.op, "", ""))


def _place(view: View, group: str, seq: int, called: Signature) -> store.CallPlace:
    op, sizes, dtypes = called
    described = hang.description(view, group)
    return store.CallPlace(group=group, description=described, seq=seq, op=op, sizes=sizes, dtypes=dtypes)


def _left_behind(view: View, call: ArrivedCall) -> Finding:
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_LEFT_BEHIND)
    detail.sides.add(ranks=call.held, call=hang.arrived_place(view, call))
    return _finding(view, call.held, detail, 0.8)


def _mismatched(view: View, call: MismatchedCall) -> Finding:
    most = call.sides[0][1]
    everybody = [rank for _, ranks in call.sides for rank in ranks]
    odd = sorted(set(everybody) - set(most))
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_DIFFERENT_CALLS, either=2 * len(odd) >= len(everybody))
    for called, ranks in call.sides:
        detail.sides.add(ranks=ranks, call=_place(view, call.group, call.seq, called))
    return _finding(view, sorted(everybody) if detail.either else odd, detail)


def _aborted(view: View, found: AbortedCall) -> Finding:
    call = found.call
    place = _place(view, call.group, call.seq, (call.op, call.sizes, call.dtypes))
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_SIZES, either=len(found.culprits) > 1)
    detail.sides.add(ranks=found.others, call=place)
    for rank in found.aborted:
        side = detail.sides.add(ranks=[rank], call=store.CallPlace(group=call.group, seq=call.seq))
        sizes = bytes_expected_and_got(view.ranks[rank].exit.last_words)
        if sizes is not None:
            side.expected_bytes, side.got_bytes = sizes
    return replace(_finding(view, found.culprits, detail), stands_still=False)
