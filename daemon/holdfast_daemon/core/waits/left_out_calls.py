"""Ranks that have made fewer calls in a group than the others by the same point of their program.

An exception that was swallowed in the middle of a step is the usual cause: the rank goes on with the next step, and the
calls that it left out are missing from then on. While sizes agree, its calls meet those of earlier steps, and only the
end of the run shows it: the rank has left, and the others wait in their last call.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast_daemon.core.waits.named_calls import GroupId, group_id
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


def left_out_calls(ranks: Mapping[int, store.RankState]) -> LeftOutCalls | None:
    """Return the first group in which ranks are behind; None: there is none."""
    members: dict[GroupId, dict[int, common.GroupProgress]] = {}
    for number in sorted(ranks):
        for group in ranks[number].progress.groups:
            if group.members:
                members.setdefault(group_id(group), {})[number] = group
    found = (_behind(group, ranks) for _, group in sorted(members.items()))
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
    # All are in one call. Whoever is in it in a later step than most has left out calls of an earlier one.
    usual_step = _lower_median([ranks[number].progress.step for number in front])
    ahead = [number for number in front if ranks[number].progress.step > usual_step]
    all_are_in_it = len(front) == len(members) > 1 and 0 < 2 * len(ahead) <= len(front)
    behind = left or (ahead if all_are_in_it else [])
    if not behind:
        return None
    return LeftOutCalls(
        group=members[front[0]].group,
        seq=newest,
        others=tuple(number for number in front if number not in behind),
        behind=tuple(behind),
        missed_calls=newest - members[behind[0]].enqueued,
        step=ranks[behind[0]].progress.step,
        others_step=front_step if left else usual_step,
        left=bool(left),
    )


def _lower_median(values: list[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]


def _is_past(progress: common.Progress, step: int) -> bool:
    """Whether a rank has done all of ``step``: one that left in the middle of it has left early instead."""
    return progress.step > step or (progress.step == step and progress.phase == common.PHASE_IDLE)


def _waits(rank: store.RankState, group: common.GroupProgress) -> bool:
    return group.enqueued > group.completed and not rank.HasField("exit") and not rank.left_training


def _has_left(rank: store.RankState) -> bool:
    """Whether a rank meant to leave, and its newest report is of that moment."""
    if not rank.HasField("exit"):
        return rank.left_training
    ended = rank.exit
    is_clean = ended.HasField("code") and ended.code == 0
    return is_clean and ended.finished and rank.progress.step == ended.step
