"""What the detectors of hangs share: whether there is one, who is at its root, and how it is told."""

from collections.abc import Iterable, Sequence

from holdfast_daemon.core.detectors.framework import Seen
from holdfast_daemon.core.detectors.view import View
from holdfast_daemon.core.words import phase_name
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_EDGES_KEPT = 32
_NUMBERS_SHOWN = 8

_DOES = {
    common.ACTIVITY_STOPPED: "is stopped",
    common.ACTIVITY_DATA: "waits for data",
    common.ACTIVITY_USER_CODE: "runs code of its own",
    common.ACTIVITY_GIL_HELD: "holds its interpreter lock",
    common.ACTIVITY_LOCK: "waits for a lock",
    common.ACTIVITY_SYSTEM_CALL: "waits in a system call",
}


def stands_still(view: View) -> bool:
    """Whether some rank has stalled past its deadline and all nodes are heard of, so that one may be judged."""
    return bool(view.late) and not view.lost_nodes


def roots(view: View) -> list[int]:
    """Return the ranks that hold everybody up, the likeliest first; none if nobody does, or nothing stands still."""
    if not stands_still(view):
        return []
    finding = view.finding
    ends = [rank for rank in finding.roots if rank in view.late or view.known_ranks[rank].HasField("exit")]
    if ends:
        return ends
    if view.outside_of_calls and len(view.outside_of_calls) < len(finding.cycle):
        return list(view.outside_of_calls)
    if not finding.cycle and not finding.everyone_arrived and len(view.late) == len(view.ranks):
        return sorted(view.late)  # nobody waits for anybody, and nobody moves
    return []


def root_message(view: View, root: int) -> str:
    """Return one line on a rank that others wait for: what it does, who waits for it, and where."""
    rank, finding = view.known_ranks[root], view.finding
    waits = {edge.waiter: edge.group for edge in finding.edges if edge.awaited == root}
    waiting = sorted(waiter for waiter, group in waits.items() if group == finding.group)
    message = f"rank {root} {_how(view, rank)}"
    if waiting:
        call = f"{finding.op} {finding.seq} of group {group_name(view, finding.group)}"
        who = f"rank {waiting[0]} waits" if len(waiting) == 1 else f"ranks {listed(waiting)} wait"
        elsewhere = f", {len(waits) - len(waiting)} elsewhere" if len(waits) > len(waiting) else ""
        message += f"; {who} for it in {call}{elsewhere}"
    return message


def _how(view: View, rank: store.RankState) -> str:
    if rank.life == store.LIFE_EXITED:
        return "ended while others still wait for it"
    activity = view.activity(rank.rank)
    where = f"in {phase_name(rank.progress.phase)} of step {rank.progress.step}"
    stack = view.stacks.get(rank.rank)
    frame = f", at {stack.frame}" if stack is not None and stack.frame else ""
    return f"{_DOES.get(activity, 'makes no progress')} {where}{frame}"


def seen_hang(view: View, kind: "store.VerdictKind", culprits: Sequence[int], message: str) -> Seen:
    """Return a verdict with the waits that it rests on."""
    finding = view.finding
    first = view.known_ranks[culprits[0]] if culprits else next(iter(view.ranks.values()))
    verdict = store.Verdict(
        kind=kind,
        culprits=culprits,
        message=message,
        confidence_ratio=1.0 if len(culprits) == 1 else 0.8,
        waits=finding.edges[:_EDGES_KEPT],
        step=first.progress.step,
        phase=first.progress.phase,
        group=finding.group,
        seq=finding.seq,
        op=_call_name(view) or finding.op,
        activity=view.activity(culprits[0]) if culprits else common.ACTIVITY_UNSPECIFIED,
    )
    return Seen(verdict=verdict, last_progress_unix_s=_last_progress(view, culprits))


def _last_progress(view: View, culprits: Sequence[int]) -> float:
    of = [view.known_ranks[rank] for rank in culprits[:1]] or list(view.ranks.values())
    if of[0].HasField("exit"):
        return min(view.now, of[0].exit.exited_unix_s)
    return view.now - min(rank.stalled_s for rank in of)


def _call_name(view: View) -> str:
    """Return what the waiting ranks' recorders call the call in question, if any has said."""
    finding = view.finding
    calls = (call for rank in view.ranks.values() for call in rank.pending)
    return next((call.op for call in calls if (call.group, call.seq) == (finding.group, finding.seq)), "")


def group_name(view: View, name: str) -> str:
    """Return a group's name with its description, where torch.distributed was given one: ``5 (mesh_tp)``."""
    groups = (group for rank in view.ranks.values() for group in rank.progress.groups)
    description = next((group.description for group in groups if group.group == name and group.description), "")
    return f"{name} ({description})" if description else name


def listed(numbers: Iterable[int]) -> str:
    """Return ranks as people list them: the first few, and how many more."""
    every = list(numbers)
    shown = ", ".join(map(str, every[:_NUMBERS_SHOWN]))
    return f"{shown} and {len(every) - _NUMBERS_SHOWN} more" if len(every) > _NUMBERS_SHOWN else shown
