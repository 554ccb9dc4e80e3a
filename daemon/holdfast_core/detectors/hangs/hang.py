"""What the detectors of hangs share: whether there is one, who is at its root, and how it is reported."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from holdfast_core.detectors.framework import Finding
from holdfast_core.detectors.view import OUTSIDE, View
from holdfast_core.diagnosis.hosts.wait_graph import EDGES_OF_A_CALL, ArrivedCall, MissedCall, WaitAnalysis
from holdfast_core.texts.activities import TRACED
from holdfast_core.world import GroupId, group_uses
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_EDGES_KEPT = 32

_FROM_A_WORKER = (common.ACTIVITY_PIPE, common.ACTIVITY_LOCK)
"""What a rank waits for that gets its data from another process. One that reads a slow disk or a server itself may have
lost a child that has nothing to do with it."""


def stands_still(view: View) -> bool:
    """Whether some rank has stalled past its deadline, all nodes are heard of, and no death explains it."""
    return bool(view.late) and not view.missing_nodes and not _has_failed(view)


def have_stalled(view: View, members: Iterable[int]) -> bool:
    """Whether all of ``members`` that can move have stalled past their deadlines.

    When a call completes, each rank reports that by itself, so that for a moment some ranks still seem to wait.
    """
    known = [view.ranks[rank] for rank in members if rank in view.ranks]
    return all(rank.rank in view.late or rank.life == store.LIFE_EXITED for rank in known)


def roots(view: View) -> list[int]:
    """Return the ranks that hold the others up, the likeliest first; none if no rank does, or none stands still.

    While a node is missing, others may wait for its ranks. Then only ranks that are busy outside of all calls count.
    """
    if not view.late or view.mismatched_call is not None or _has_failed(view):
        return []
    found = _roots(view)
    if view.uses_devices or (found and view.different_groups is not None):
        # A rank that waits for its device looks like one that is busy. And if ranks mean different groups by one name,
        # numbers do not show who is late. What stops or ends a rank is certain all the same.
        return [rank for rank in found if _has_left(view, rank) or view.activity(rank) == common.ACTIVITY_STOPPED]
    return [rank for rank in found if view.activity(rank) in OUTSIDE] if view.missing_nodes else found


def _roots(view: View) -> list[int]:
    analysis = view.wait_analysis
    outrun = _outrun(view)
    ends = [
        rank
        for rank in analysis.roots
        if _has_left(view, rank) or (rank in view.late and rank not in outrun and not view.may_have_arrived(rank))
    ]
    if ends:
        return ends
    if analysis.roots or analysis.cycle or analysis.everyone_arrived:
        about_to_move = _held_by_those_that_moved(view)
        return [rank for rank in view.outside_of_calls if rank in view.late and rank not in about_to_move]
    if not nobody_waits(view):
        return []
    # The others wait in calls that no counter shows, such as those before the first group exists.
    waits = [rank for rank in view.late if view.activity(rank) == common.ACTIVITY_COLLECTIVE]
    if all(view.activity(rank) == common.ACTIVITY_DATA for rank in view.late):
        return sorted(view.late)
    busy = [
        rank for rank in sorted(view.late) if view.activity(rank) in OUTSIDE or (waits and _is_elsewhere(view, rank))
    ]
    all_wait = bool(waits) and len(waits) + len(busy) == len(view.late)
    by_stacks = bool(waits) and len(busy) < len(waits)
    by_looks = not waits and 2 * len(busy) < len(view.late)
    return busy if all_wait or by_stacks or by_looks else []


def _is_elsewhere(view: View, number: int) -> bool:
    """Whether a rank's stack was taken and shows no call of torch, whatever else it does: it may just sleep."""
    stack = view.stacks.get(number)
    return stack is not None and bool(stack.frame) and stack.activity != common.ACTIVITY_COLLECTIVE


def nobody_waits(view: View) -> bool:
    """Whether all ranks that exist stand still, and none is known to wait for another."""
    if not view.late or not have_stalled(view, view.ranks):
        return False
    analysis = view.wait_analysis
    return view.uses_devices or not (analysis.roots or analysis.cycle or analysis.everyone_arrived)


def _outrun(view: View) -> set[int]:
    """Return late ranks in whose groups another rank has just completed calls that they have not reported yet."""
    completed: dict[GroupId, int] = {}
    still = view.late.keys() | view.world.ended.keys()
    if len(still) == len(view.ranks):
        return set()
    for identity, number, group in group_uses(view.ranks):
        if number not in still:
            completed[identity] = max(completed.get(identity, 0), group.completed)
    uses = group_uses(view.ranks)
    return {number for identity, number, it in uses if number in view.late and completed.get(identity, 0) > it.enqueued}


def _held_by_those_that_moved(view: View) -> set[int]:
    """Return ranks in calls that all have entered and some have left: these ranks have not reported that yet."""
    calls = (call for call in view.wait_analysis.everyone_arrived if not have_stalled(view, call.members))
    return {rank for call in calls for rank in call.held}


def _has_failed(view: View) -> bool:
    """Whether a rank has failed. Its peers fail too, or wait for it: dead_rank.py reports that once it has settled."""
    return view.first_exit_unix_s > 0.0


def _has_left(view: View, number: int) -> bool:
    """Whether a rank that others wait for has ended, or has closed its hooks, so that it shows no progress."""
    rank = view.ranks.get(number)
    return rank is not None and (rank.HasField("exit") or rank.left_training)


def held_rank(view: View, number: int, missed: MissedCall | None = None) -> store.HeldRank:
    """Return where a rank at the root is, what it does, and who waits for it in which call.

    ``missed``: that call, if recorders show it; else the counters of groups on hosts do.
    """
    rank, stack = view.known_ranks[number], view.stacks.get(number)
    held = store.HeldRank(
        rank=number,
        state=_held_state(rank),
        activity=view.activity(number),
        blocked_on=view.blocked_on(number),
        frame=stack.frame if stack is not None else "",
        step=rank.progress.step,
        phase=rank.progress.phase,
    )
    if rank.lost_worker.pid and held.activity == common.ACTIVITY_DATA and held.blocked_on.activity in _FROM_A_WORKER:
        held.lost_worker.CopyFrom(rank.lost_worker)
    if rank.process_state == "t":
        held.blocked_on.CopyFrom(common.BlockedOn(activity=common.ACTIVITY_STOPPED, call=TRACED))
    missed = missed or next((call for call in view.wait_analysis.missed if call.rank == number), None)
    if missed is not None:
        held.missed.CopyFrom(call_place(view, missed))
        held.waiters.extend(missed.waiters)
        held.elsewhere = missed.elsewhere
    return held


def _held_state(rank: store.RankState) -> "store.HeldState":
    if rank.life == store.LIFE_EXITED:
        return store.HELD_STATE_ENDED
    return store.HELD_STATE_LEFT if rank.left_training else store.HELD_STATE_PRESENT


def hang_finding(view: View, verdict: store.Verdict) -> Finding:
    """Return the finding of a hang with its waits. Its call is the one in which the first culprit is missing.

    ``verdict``: has its kind, culprits and detail; what all hangs share is filled in where it lacks.
    """
    analysis, culprits = view.wait_analysis, verdict.culprits
    first = view.known_ranks[culprits[0]] if culprits else next(iter(view.ranks.values()))
    if not verdict.group and not verdict.HasField("device_call"):
        call = next((missed for missed in analysis.missed if missed.rank in culprits[:1]), analysis)
        verdict.group, verdict.seq, verdict.op = call.group, call.seq, call_name(view, call)
    verdict.confidence_ratio = verdict.confidence_ratio or (1.0 if len(culprits) == 1 else 0.8)
    if not verdict.waits and not verdict.HasField("device_call"):
        verdict.waits.extend(kept_waits(analysis.edges, culprits[:1]))
        verdict.waiting_ranks = analysis.waiting
    # A rank that has ended may have left its agent without a report of its last steps. Its exit has them.
    last = first.exit if first.HasField("exit") else first.progress
    verdict.step, verdict.phase = last.step, last.phase
    verdict.activity = view.activity(culprits[0]) if culprits else common.ACTIVITY_UNSPECIFIED
    return Finding(verdict=verdict, last_progress_unix_s=_last_progress(view, culprits), stands_still=True)


def kept_waits(edges: Iterable[store.WaitEdge], first: Collection[int]) -> list[store.WaitEdge]:
    """Return the first few waits of each call: those for the ranks of ``first``, then the others."""
    kept: list[store.WaitEdge] = []
    of_call: Counter[tuple[int, str, int, str]] = Counter()
    for edge in sorted(edges, key=lambda edge: edge.awaited not in first):
        call = edge.awaited, edge.group, edge.seq, edge.op
        of_call[call] += 1
        if of_call[call] <= EDGES_OF_A_CALL:
            kept.append(edge)
    return kept[:_EDGES_KEPT]


def _last_progress(view: View, culprits: Sequence[int]) -> float:
    of = [view.known_ranks[rank] for rank in culprits[:1]] or list(view.ranks.values())
    if of[0].HasField("exit"):
        return min(view.now, of[0].exit.exited_unix_s)
    return view.now - min(rank.stalled_s for rank in of)


def call_name(view: View, call: WaitAnalysis | MissedCall) -> str:
    """Return what the recorders of those that wait call a call, if any has said."""
    waiters = {edge.waiter for edge in view.wait_analysis.edges if (edge.group, edge.seq) == (call.group, call.seq)}
    named = (pending for rank in sorted(waiters) for pending in view.known_ranks[rank].pending)
    return next((one.op for one in named if (one.group, one.seq) == (call.group, call.seq)), call.op)


def waits_in_start(view: View, culprits: Collection[int]) -> bool:
    """Whether all others are before their first step, and stacks show that some wait in torch.distributed."""
    others = [rank for number, rank in view.ranks.items() if number not in culprits]
    if not all(rank.progress.step < 0 or not rank.steps_done for rank in others):
        return False
    return any(view.activity(rank.rank) == common.ACTIVITY_COLLECTIVE for rank in others)


def call_place(view: View, call: WaitAnalysis | MissedCall) -> store.CallPlace:
    """Return a call with the name that its recorders and its group give it."""
    return store.CallPlace(
        group=call.group, description=description(view, call.group), seq=call.seq, op=call_name(view, call)
    )


def arrived_place(view: View, call: ArrivedCall) -> store.CallPlace:
    """Return a call that all members have entered, as the first that it holds names it."""
    named = pending_call(view, call.held[0], call.group, call.seq)
    op = named.op if named is not None else call.op
    return store.CallPlace(group=call.group, description=description(view, call.group), seq=call.seq, op=op)


def description(view: View, name: str) -> str:
    """Return what the user called a group; empty: nothing, or torch.distributed was not told."""
    return view.world.remembered("descriptions", lambda: _descriptions(view)).get(name, "")


def _descriptions(view: View) -> dict[str, str]:
    found: dict[str, str] = {}
    for rank in view.ranks.values():
        for group in (*rank.progress.groups, *rank.progress.device_groups):
            if group.description:
                found.setdefault(group.group, group.description)
    return found


def pending_call(view: View, rank: int, group: str, seq: int) -> common.PendingCall | None:
    """Return a call of a rank as its own recorder names it; None: it has not said."""
    named = view.known_ranks[rank].pending if rank in view.known_ranks else ()
    return next((call for call in named if (call.group, call.seq) == (group, seq)), None)
