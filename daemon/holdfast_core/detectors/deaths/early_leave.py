"""Ranks that have left with code 0 in the middle of a step, though others need them.

At the end of a run ranks leave one after another, and no call waits for one that has left. A rank left too early if
another has entered a call that it never entered. If it had closed its hooks, its last report contains all of its calls,
and the judgement is immediate. If it had not, its last report may lack some calls: then others must have waited for it
for some time, and for no other rank.
"""

from collections.abc import Iterable, Mapping

from holdfast_core.detectors.deaths import death
from holdfast_core.detectors.view import View
from holdfast_core.world import group_id
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

WAITED_S = 1.0
"""Time to wait in a call that lacks only ranks that have left: their data would have arrived by then."""

_IN_A_STEP = (common.PHASE_DATA, common.PHASE_FORWARD_BACKWARD, common.PHASE_OPTIMIZER)

_OPPOSITE = {
    common.DIRECTION_SEND: common.DIRECTION_RECV,
    common.DIRECTION_RECV: common.DIRECTION_SEND,
}


def early_leavers(view: View) -> dict[int, store.RankExit]:
    """Return the exits of ranks that left too early."""
    left = {number: rank for number, rank in view.world.ended.items() if _has_left_in_a_step(rank)}
    if not left:
        return {}
    if has_left_out_calls(view):
        return {}  # they left when their program was done, and have left out calls before: see mismatched_order.py
    others = [rank for rank in view.ranks.values() if not rank.HasField("exit")]
    waited_for = _waited_for(view, left)
    return {
        number: rank.exit
        for number, rank in left.items()
        if number in waited_for or (_has_reported_all(rank) and _is_missed(rank, others))
    }


def has_left_out_calls(view: View) -> bool:
    """Whether ranks that have left have made fewer calls than the others by the end of their program."""
    return view.left_out is not None and view.left_out.left


def _has_left_in_a_step(rank: store.RankState) -> bool:
    return death.is_clean(rank.exit) and rank.exit.phase in _IN_A_STEP


def _has_reported_all(rank: store.RankState) -> bool:
    ended, newest = rank.exit, rank.progress
    return ended.finished and (newest.step, newest.phase) == (ended.step, ended.phase)


def _is_missed(left: store.RankState, others: Iterable[store.RankState]) -> bool:
    """Whether one of ``others`` has entered a call with ``left`` that this one never entered."""
    groups = {group_id(group): group.enqueued for group in left.progress.groups if group.member_runs}
    channels = {(one.group, one.peer, one.direction): one.enqueued for one in left.progress.channels}
    return any(
        any(one.member_runs and one.enqueued > groups.get(group_id(one), one.enqueued) for one in rank.progress.groups)
        or any(
            one.peer == left.rank and one.enqueued > channels.get((one.group, rank.rank, _OPPOSITE[one.direction]), 0)
            for one in rank.progress.channels
        )
        for rank in others
    )


def _waited_for(view: View, left: Mapping[int, store.RankState]) -> set[int]:
    """Return those of ``left`` for whom others have waited long, if all waiting leads to ranks that have left."""
    if not left.keys() >= set(view.wait_analysis.roots):
        return set()
    return {
        call.rank
        for call in view.wait_analysis.missed
        if call.rank in left and all(view.known_ranks[number].stalled_s >= WAITED_S for number in call.waiters)
    }
