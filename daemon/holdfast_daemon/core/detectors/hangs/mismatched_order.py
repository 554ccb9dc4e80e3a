"""Ranks that wait for each other, or have met in different calls: their programs have parted.

Four signs. Members of a group have entered its call number ``seq`` and their recorders name different operations or,
where these must agree, different sizes or data types: that speaks for itself, whoever else stands still. Or members
were aborted because they got more than they expected: see aborted_call.py. Or there is a cycle in the wait-for
graph that holds all of its ranks in their calls: they call in different orders. Or a minority of a group is left behind
in a call that all others have completed: it waits for more than they had to give.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from holdfast_daemon.core.detectors.framework import Detector, Seen, Sight
from holdfast_daemon.core.detectors.hangs import hang
from holdfast_daemon.core.detectors.hangs.aborted_call import AbortedCall, aborted_call, names_are_in
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.peer_loss import bytes_expected_and_got
from holdfast_daemon.core.waits.named_calls import PartedCall
from holdfast_daemon.core.waits.wait_graph import ArrivedCall
from holdfast_proto.v1 import store_pb2 as store

_SIDES_SHOWN = 4


@dataclass(frozen=True)
class MismatchedOrder(Detector):
    """Reports both sides' calls; of a group, the ranks that differ from most are the culprits."""

    name: ClassVar[str] = "mismatched_order"

    def see_tick(self, view: View) -> Sight:
        """Judge once the ranks in question have stalled past their deadlines, or one was aborted for what it met."""
        stands_still, aborts_are_told = hang.stands_still(view), names_are_in(view)
        if view.parted_call is not None and (stands_still or aborts_are_told):
            return Sight(self, (_parted(view, view.parted_call),))
        aborted = aborted_call(view) if aborts_are_told else None
        if aborted is not None:
            return Sight(self, (_aborted(view, aborted),))
        if not stands_still:
            return Sight(self)
        cycle = set(view.finding.cycle)
        if cycle and cycle <= view.late.keys() and cycle.isdisjoint(view.outside_of_calls) and not hang.roots(view):
            return Sight(self, (_circle(view),))
        left_behind = next((call for call in view.finding.everyone_arrived if call.holds_a_minority), None)
        if left_behind is not None and hang.have_stalled(view, left_behind.members) and not hang.roots(view):
            return Sight(self, (_left_behind(view, left_behind),))
        return Sight(self)


def _circle(view: View) -> Seen:
    cycle = view.finding.cycle
    message = f"ranks {hang.listed(cycle)} wait for each other: their calls are in different orders, or one is missing"
    seen = hang.seen_hang(view, store.VERDICT_KIND_MISMATCHED_ORDER, list(cycle), message)
    inside = [edge for edge in view.finding.edges if edge.waiter in cycle and edge.awaited in cycle]
    for edge in inside[:_SIDES_SHOWN]:
        group = hang.group_name(view, edge.group)
        seen.verdict.calls.append(
            f"rank {edge.waiter} waits for {edge.awaited} in {edge.op} {edge.seq} of group {group}"
        )
    return seen


def _left_behind(view: View, call: ArrivedCall) -> Seen:
    where = f"call {call.seq} of group {hang.group_name(view, call.group)}"
    who = f"{_ranks(call.held)} {'is' if len(call.held) == 1 else 'are'}"
    message = f"{who} still in {where}, which all others have completed: it made another call there, or lost data"
    seen = hang.seen_hang(view, store.VERDICT_KIND_MISMATCHED_ORDER, list(call.held), message)
    verdict, named = seen.verdict, view.ranks[call.held[0]].pending
    op = next((one.op for one in named if (one.group, one.seq) == (call.group, call.seq)), call.op)
    verdict.group, verdict.seq, verdict.op, verdict.confidence_ratio = call.group, call.seq, op, 0.8
    return seen


def _parted(view: View, call: PartedCall) -> Seen:
    most = call.sides[0][1]
    everybody = [rank for _, ranks in call.sides for rank in ranks]
    odd = sorted(set(everybody) - set(most))
    culprits = odd if 2 * len(odd) < len(everybody) else sorted(everybody)
    where = f"call {call.seq} of group {hang.group_name(view, call.group)}"
    told = [f"{_ranks(ranks)} in {' '.join(part for part in called if part)}" for called, ranks in call.sides]
    message = f"ranks have met in different calls: {where} finds {' and '.join(told[:_SIDES_SHOWN])}"
    seen = hang.seen_hang(view, store.VERDICT_KIND_MISMATCHED_ORDER, culprits, message)
    seen.verdict.group, seen.verdict.seq, seen.verdict.op = call.group, call.seq, call.sides[0][0][0]
    seen.verdict.calls.extend(f"{side}: {where}" for side in told[:_SIDES_SHOWN])
    return seen


def _aborted(view: View, found: AbortedCall) -> Seen:
    call, others, aborted = found.call, _ranks(found.others), _ranks(found.aborted)
    where = f"call {call.seq} of group {hang.group_name(view, call.group)}"
    if len(found.others) > 1:
        message = f"{aborted} have met in {where} with different sizes: one of them called with a wrong one"
    else:
        doubt = "" if len(found.culprits) == 1 else ": either may have called with a wrong size"
        message = f"{others} has sent more in {where} than {aborted} expected{doubt}"
    seen = hang.seen_hang(view, store.VERDICT_KIND_MISMATCHED_ORDER, list(found.culprits), message)
    seen.verdict.group, seen.verdict.seq, seen.verdict.op = call.group, call.seq, call.op
    seen.verdict.calls.append(f"{others} in {' '.join(part for part in (call.op, call.sizes) if part)}: {where}")
    seen.verdict.calls.extend(_met(rank, view.ranks[rank].exit) for rank in found.aborted[:_SIDES_SHOWN])
    return replace(seen, stands_still=False)


def _met(rank: int, ended: store.RankExit) -> str:
    sizes = bytes_expected_and_got(ended.last_words)
    met = "" if sizes is None else f": it expected {sizes[0]} bytes and got {sizes[1]}"
    return f"rank {rank} was aborted{met}"


def _ranks(numbers: tuple[int, ...]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {hang.listed(numbers)}"
