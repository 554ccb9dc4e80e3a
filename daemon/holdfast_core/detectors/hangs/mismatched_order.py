"""Ranks that wait for each other, or are in different calls at one number: their programs make different calls.

Seven signs. Ranks have made different groups under one number: see different_groups.py. Members of a group have entered
its call number ``seq`` and their recorders name different operations or, where these must agree, different sizes or
data types: that is proof, also if other ranks stand still. Or members were aborted because they got more than they
expected: see aborted_call.py. Or there is a cycle in the wait-for graph that holds all of its ranks in their calls:
they call in different orders. Or a minority of a group is left behind in a call that all others have completed: it
waits for more than they had to give. Or a message went to one rank while another waits for it: see stray_message.py. Or
ranks have left out calls: see left_out_calls.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from holdfast_core.detectors.deaths.aborted_call import AbortedCall, aborted_call, names_are_in
from holdfast_core.detectors.deaths.peer_loss import bytes_expected_and_got
from holdfast_core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_core.detectors.hangs import hang
from holdfast_core.detectors.hangs.aborted_sides import sides_of_aborted
from holdfast_core.detectors.view import OUTSIDE, View
from holdfast_core.diagnosis.hosts.different_groups import DifferentGroups
from holdfast_core.diagnosis.hosts.left_out_calls import LeftOutCalls
from holdfast_core.diagnosis.hosts.stray_message import StrayMessage, stray_message
from holdfast_core.diagnosis.hosts.wait_graph import ArrivedCall
from holdfast_core.diagnosis.operations import MismatchedCall, Signature
from holdfast_core.diagnosis.wait_for_graph import COLLECTIVE, RECV, SEND
from holdfast_core.world import group_id
from holdfast_proto.member_runs import members_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class MismatchedOrder(Detector):
    """Reports both sides' calls; of a group, the ranks that differ from most are the culprits."""

    name: ClassVar[str] = "mismatched_order"

    def see_tick(self, view: View) -> DetectorResult:
        """Judge once the ranks in question have stalled past their deadlines, or one was aborted for what it met."""
        stands_still, aborts_are_named = hang.stands_still(view), names_are_in(view)
        at_one_number = _at_one_number(view, stands_still=stands_still, aborts_are_named=aborts_are_named)
        if at_one_number is not None:
            return DetectorResult(self, (at_one_number,))
        aborted = aborted_call(view) if aborts_are_named else None
        if aborted is not None:
            return DetectorResult(self, (_aborted(view, aborted),))
        left_out = _left_out_now(view, stands_still=stands_still)
        if left_out is not None:
            return DetectorResult(self, (left_out,))
        crossed = _crossed_message(view) if stands_still else None
        if crossed is not None:
            return DetectorResult(self, (_crossed(view, *crossed),))
        if not stands_still or hang.roots(view):
            return DetectorResult(self)
        return DetectorResult(self, tuple(_deadlocks(view)))


def _at_one_number(view: View, *, stands_still: bool, aborts_are_named: bool) -> Finding | None:
    """Return the finding of ranks that mean different groups, or different calls, by one number."""
    if stands_still and hang.have_stalled(view, view.ranks) and view.different_groups is not None:
        return _different_groups(view, view.different_groups)
    if view.mismatched_call is not None and (stands_still or aborts_are_named):
        return different_calls(view, view.mismatched_call)
    return None


def _different_groups(view: View, found: DifferentGroups) -> Finding:
    """Return the finding of groups that share a number. Ranks that differ from most are the culprits."""
    (_, most), *others = found.sides
    odd = sorted(rank for _, ranks in others for rank in ranks)
    either = 2 * len(most) <= len(most) + len(odd)
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_GROUPS, either=either)
    place = store.CallPlace(group=found.group, description=hang.description(view, found.group))
    for members, ranks in found.sides:
        detail.sides.add(ranks=ranks, members=members, call=place)
    return _finding(view, sorted((*most, *odd)) if either else odd, detail)


def _deadlocks(view: View) -> Iterator[Finding]:
    """Yield what holds ranks in their calls although nobody is missing."""
    cycle = set(view.wait_analysis.cycle)
    if cycle and cycle <= view.late.keys() and cycle.isdisjoint(view.outside_of_calls):
        stray = stray_message(view.ranks, view.wait_analysis.deadlock)
        yield _circle(view) if stray is None else _stray(view, stray)
        return
    left_behind = next((call for call in view.wait_analysis.everyone_arrived if call.holds_a_minority), None)
    if left_behind is not None and hang.have_stalled(view, left_behind.members):
        yield _left_behind(view, left_behind)


def _left_out_now(view: View, *, stands_still: bool) -> Finding | None:
    """Return the finding on ranks that have left out calls, once the others have failed or stalled in theirs."""
    if not stands_still and not view.first_exit_unix_s:
        return None  # a healthy tick must not pay for a look at all groups of all ranks
    behind = view.left_out
    if behind is None:
        return None
    if behind.left and _have_failed(view, behind):
        return replace(_left_out(view, behind), stands_still=False)
    return _left_out(view, behind) if stands_still and _are_held(view, behind) else None


def _have_failed(view: View, found: LeftOutCalls) -> bool:
    """Whether all that were in the call have failed there, because the others have gone."""
    return all(view.ranks[rank].HasField("exit") for rank in found.others)


def _are_held(view: View, found: LeftOutCalls) -> bool:
    """Whether all of both sides have stalled past their deadlines, and none that waits in the call is busy elsewhere.

    When a late rank comes to the call, its next report may show it steps further before the others report at all.
    """
    is_held = all(view.activity(rank) not in OUTSIDE for rank in found.others)
    present = found.others if found.left else (*found.others, *found.behind)
    return is_held and hang.have_stalled(view, present)


def _finding(
    view: View, culprits: Sequence[int], detail: store.MismatchDetail, confidence_ratio: float = 0.0
) -> Finding:
    """Return the finding of a mismatch. Its call is the one that lacks the first culprit, or that of the first side."""
    for side in detail.sides:
        stack = view.stacks.get(side.ranks[0])
        side.frame = stack.frame if stack is not None else ""
    missing = (side.call for side in detail.sides if side.HasField("peer") and side.peer in culprits[:1])
    call = next(missing, detail.sides[0].call)
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
    return _finding(view, _odd_in_circle(view, cycle, inside), detail)


def _odd_in_circle(
    view: View, cycle: tuple[int, ...], inside: Mapping[tuple[int, int], store.WaitEdge]
) -> tuple[int, ...]:
    """Return which of two ranks is held in another call than most; both if the calls are not of the same ranks."""
    edges = [inside.get((one, other)) for one, other in (cycle, cycle[::-1])] if len(cycle) == 2 else [None]
    calls = [_held_in(view, edge) for edge in edges if edge is not None]
    if len(calls) < len(cycle):
        return cycle
    (first, first_members), (second, second_members) = calls
    if first_members != second_members or first & second or len(first) == len(second):
        return cycle
    return cycle[:1] if len(first) < len(second) else cycle[1:]


def _held_in(view: View, edge: store.WaitEdge) -> tuple[set[int], tuple[int, ...]]:
    """Return the ranks that are held in the call of an edge, and the members of its group."""
    waiting = view.ranks[edge.waiter].progress.groups
    group_of_edge = next((group_id(group) for group in waiting if group.group == edge.group), None)
    held: set[int] = set()
    members: tuple[int, ...] = ()
    for number in view.late:
        for group in view.ranks[number].progress.groups:
            if group_id(group) == group_of_edge and group.enqueued >= edge.seq > group.completed:
                held.add(number)
                members = members_of(group.member_runs)
    return held, members


def _edge_place(view: View, edge: store.WaitEdge) -> store.CallPlace:
    named = hang.pending_call(view, edge.waiter, edge.group, edge.seq)
    return _place(view, edge.group, edge.seq, (named.op, named.sizes, named.dtypes) if named else (edge.op, "", ""))


def _place(view: View, group: str, seq: int, called: Signature) -> store.CallPlace:
    op, sizes, dtypes = called
    described = hang.description(view, group)
    return store.CallPlace(group=group, description=described, seq=seq, op=op, sizes=sizes, dtypes=dtypes)


def _crossed_message(view: View) -> tuple[store.WaitEdge, str, int] | None:
    """Return a wait in a collective, and group and number of a message that the waiting rank posts no receive for.

    The sender may seem to be at the root, because a send need not hold its rank up. But a rank that waits for it in a
    collective has left out the receive before, unless something else is seen to hold the sender up.
    """
    for edge in view.wait_analysis.edges:
        sender, waiter = view.ranks.get(edge.awaited), view.ranks.get(edge.waiter)
        if (
            edge.op != COLLECTIVE
            or sender is None
            or waiter is None
            or not {edge.awaited, edge.waiter} <= view.late.keys()
        ):
            continue
        is_root = edge.awaited in view.wait_analysis.roots and view.activity(edge.awaited) not in OUTSIDE
        pending = _unreceived(sender, waiter) if is_root and view.activity(edge.waiter) not in OUTSIDE else None
        if pending is not None:
            return edge, *pending
    return None


def _unreceived(sender: store.RankState, receiver: store.RankState) -> tuple[str, int] | None:
    """Return group and number of the first pending send for which the other side has posted no receive."""
    posted = {
        (one.group, one.peer): one.enqueued
        for one in receiver.progress.channels
        if one.direction == common.DIRECTION_RECV
    }
    for one in sender.progress.channels:
        if one.direction == common.DIRECTION_SEND and one.peer == receiver.rank:
            received = max(one.completed, posted.get((one.group, sender.rank), 0))
            if one.enqueued > received:
                return one.group, received + 1
    return None


def _crossed(view: View, edge: store.WaitEdge, group: str, seq: int) -> Finding:
    place = _place(view, group, seq, (SEND, "", ""))
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_CIRCLE, either=True)
    detail.sides.add(ranks=[edge.waiter], call=_edge_place(view, edge), peer=edge.awaited)
    detail.sides.add(ranks=[edge.awaited], call=place, peer=edge.waiter)
    return _finding(view, [edge.waiter, edge.awaited], detail)


def _stray(view: View, stray: StrayMessage) -> Finding:
    described = hang.description(view, stray.group)
    sent = store.CallPlace(group=stray.group, description=described, seq=stray.sent, op=SEND)
    awaited = store.CallPlace(group=stray.group, description=described, seq=stray.expected, op=RECV)
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_PEER, either=True)
    detail.sides.add(ranks=[stray.sender], call=sent, peer=stray.receiver)
    detail.sides.add(ranks=[stray.waiter], call=awaited, peer=stray.awaited)
    return _finding(view, list(dict.fromkeys((stray.sender, stray.waiter))), detail)


def _left_out(view: View, found: LeftOutCalls) -> Finding:
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_BEHIND, either=len(found.behind) == len(found.others))
    named = hang.pending_call(view, found.others[0], found.group, found.seq)
    called = (named.op, named.sizes, named.dtypes) if named is not None else (COLLECTIVE, "", "")
    place = _place(view, found.group, found.seq, called)
    detail.sides.add(ranks=found.others, call=place, step=found.others_step)
    detail.sides.add(
        ranks=found.behind,
        call=place,
        step=found.step,
        missed_calls=found.missed_calls,
        left=found.left,
        past=found.past,
    )
    culprits = [*found.behind, *(found.others if detail.either and not found.left else ())]
    return _finding(view, culprits, detail)


def _left_behind(view: View, call: ArrivedCall) -> Finding:
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_LEFT_BEHIND)
    detail.sides.add(ranks=call.held, call=hang.arrived_place(view, call))
    return _finding(view, call.held, detail, 0.8)


def different_calls(view: View, call: MismatchedCall, culprits: Sequence[int] | None = None) -> Finding:
    """Return the finding on a call in which ranks do different things.

    ``culprits``: None names the ranks that differ from most, or all where neither side is larger.
    """
    aborted = sides_of_aborted(view, call)
    sides = {
        called: {*ranks, *(rank for rank, own in aborted.items() if own == called)} for called, ranks in call.sides
    }
    everybody, most = set().union(*sides.values()), max(sides.values(), key=len)
    odd = everybody - most
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_DIFFERENT_CALLS, either=2 * len(odd) >= len(everybody))
    for called, ranks in call.sides:
        detail.sides.add(ranks=ranks, call=_place(view, call.group, call.seq, called))
    for rank, called in aborted.items():
        side = detail.sides.add(ranks=[rank], call=_place(view, call.group, call.seq, called))
        _add_sizes(view, side)
    if culprits is None:
        culprits = sorted(everybody if detail.either else odd)
    return _finding(view, culprits, detail)


def _aborted(view: View, found: AbortedCall) -> Finding:
    call = found.call
    place = _place(view, call.group, call.seq, (call.op, call.sizes, call.dtypes))
    detail = store.MismatchDetail(form=store.MISMATCH_FORM_SIZES, either=len(found.culprits) > 1)
    detail.sides.add(ranks=found.others, call=place)
    for rank in found.aborted:
        side = detail.sides.add(ranks=[rank], call=store.CallPlace(group=call.group, seq=call.seq))
        _add_sizes(view, side)
    return replace(_finding(view, found.culprits, detail), stands_still=False)


def _add_sizes(view: View, side: store.MismatchSide) -> None:
    """Add to the side of an aborted rank how much it expected and got."""
    sizes = bytes_expected_and_got(view.ranks[side.ranks[0]].exit.last_words)
    if sizes is not None:
        side.expected_bytes, side.got_bytes = sizes
