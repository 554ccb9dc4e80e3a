"""Ranks that have made fewer calls in a group than the others by the same point of their program.

The usual cause is an exception that was swallowed in the middle of a step: the rank continues with the next step, and
the calls that it left out are missing from then on. While sizes agree, its calls meet those of earlier steps. Only the
end of the run shows it: the rank has left, and the others wait in their last call.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast_core.diagnosis.operations import has_root
from holdfast_core.world import GroupId, group_uses
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class LeftOutCalls:
    """Ranks of a group that are behind the others."""

    group: str
    seq: int
    """Call in which the others wait."""
    others: tuple[int, ...]
    behind: tuple[int, ...]
    missed_calls: int
    """Calls that ``behind`` have made fewer than the others by the same step."""
    step: int
    """Newest step of the first rank of ``behind``."""
    others_step: int
    left: bool
    """Whether ``behind`` have left training."""
    past: bool = False
    """Whether the call is complete on ``behind``: it has met their next one there."""


def left_out_calls(ranks: Mapping[int, store.RankState]) -> LeftOutCalls | None:
    """Return the first group in which ranks are behind; None: there is none."""
    members: dict[GroupId, dict[int, common.GroupProgress]] = {}
    for identity, number, group in group_uses(ranks):
        members.setdefault(identity, {})[number] = group
    found = (_behind(dict(sorted(group.items())), ranks) for _, group in sorted(members.items()))
    return next((one for one in found if one is not None), None)


def _behind(members: Mapping[int, common.GroupProgress], ranks: Mapping[int, store.RankState]) -> LeftOutCalls | None:
    waiting = {number: group for number, group in members.items() if _waits(ranks[number], group)}
    newest = max((group.enqueued for group in waiting.values()), default=0)
    front = [number for number, group in waiting.items() if group.enqueued == newest]
    if not front:
        return None
    front_step = max(ranks[number].progress.step for number in front)
    left = [
        number
        for number, group in members.items()
        if group.enqueued < newest and _has_left(ranks[number]) and _is_past(ranks[number].progress, front_step)
    ]
    # All have come to one call. A rank that is in it or past it in a later step than most has left out calls of an
    # earlier one.
    steps = {number: ranks[number].progress.step for number in members}
    usual_step = _lower_median([steps[number] for number in front])
    ahead = [number for number in members if steps[number] > usual_step]
    have_come = all(group.enqueued >= newest and _is_there(ranks[number]) for number, group in members.items())
    is_odd = (
        len(members) > 1 and 0 < 2 * len(ahead) <= len(members) and all(n in front for n in members if n not in ahead)
    )
    group_name = members[front[0]].group
    is_past = all(members[number].completed >= newest for number in ahead)
    names = _names(ranks, front, group_name, newest)
    # In a call like a broadcast, ranks that only send are through before the others.
    is_sure = not any(map(has_root, names)) and (bool(names) or not is_past)
    behind = left or (ahead if have_come and is_odd and is_sure else [])
    if not behind:
        return None
    if left:  # those that lack as many calls: others have another fault, or the same at another time
        behind = [number for number in left if members[number].enqueued == members[left[0]].enqueued]
    return LeftOutCalls(
        group=group_name,
        seq=newest,
        others=tuple(number for number in front if number not in behind),
        behind=tuple(behind),
        missed_calls=newest - members[behind[0]].enqueued if left else 0,
        step=steps[behind[0]],
        others_step=front_step if left else usual_step,
        left=bool(left),
        past=not left and is_past,
    )


def _is_there(rank: store.RankState) -> bool:
    return not rank.HasField("exit") and not rank.left_training


def _names(ranks: Mapping[int, store.RankState], front: list[int], group: str, seq: int) -> set[str]:
    """Return the operations that recorders name for a call."""
    calls = (call for number in front for call in ranks[number].pending)
    return {call.op for call in calls if (call.group, call.seq) == (group, seq)}


def _lower_median(values: list[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]


def _is_past(progress: common.Progress, step: int) -> bool:
    """Whether a rank has done all of ``step``: one that left in the middle of it has left early instead."""
    return progress.step > step or (progress.step == step and progress.phase == common.PHASE_IDLE)


def _waits(rank: store.RankState, group: common.GroupProgress) -> bool:
    """Whether a rank waits in a call, or has failed in one: when a rank has gone, its peers fail in their last call."""
    if rank.HasField("exit"):
        return group.enqueued > 0 and not _is_clean(rank.exit)
    return group.enqueued > group.completed and not rank.left_training


def _has_left(rank: store.RankState) -> bool:
    """Whether a rank meant to leave, and its newest report is of that moment."""
    if not rank.HasField("exit"):
        return rank.left_training
    ended = rank.exit
    return _is_clean(ended) and ended.finished and rank.progress.step == ended.step


def _is_clean(ended: store.RankExit) -> bool:
    return ended.HasField("code") and ended.code == 0
