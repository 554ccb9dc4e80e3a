"""Reads from the counters of groups and channels on hosts in which calls ranks wait, and for whom.

A rank with a pending call at ``seq`` waits for each member that has not arrived at ``seq``. With a pending message in a
channel it waits for its peer. A call is there once for all that wait in it, and lists once whom it misses, so that a
group of n ranks costs n entries and not n x n edges.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from statistics import median_low

from holdfast_core.diagnosis.wait_for_graph import COLLECTIVE, RECV, SEND, SharedCall
from holdfast_core.world import GroupId, group_uses
from holdfast_proto.member_runs import members_of
from holdfast_proto.v1 import common_pb2, store_pb2

_SILENT_FLOOR_S = 0.7
_SILENT_RATIO = 3.0


class Liveness(IntEnum):
    """Liveness of a rank, the most certain cause of a hang first.

    Only the reports of an alive rank are up to date: nothing follows from the pending calls of another one.
    """

    DEAD = 0
    STOPPED = 1
    SILENT = 2
    """Its reporter is not scheduled (the GIL is held, or the node is gone), or the rank has never reported."""
    ALIVE = 3


def liveness_of(ranks: Mapping[int, store_pb2.RankState]) -> dict[int, Liveness]:
    """Return the liveness of each rank.

    A rank is silent after ``max(0.7 s, 3 x the median silence)``: a slow store or a loaded
    machine delays the reports of all ranks alike and makes none of them suspect.
    """
    silences = [state.silent_s for state in ranks.values() if state.life != store_pb2.LIFE_EXITED]
    silent_after_s = max(_SILENT_FLOOR_S, _SILENT_RATIO * median_low(silences)) if silences else _SILENT_FLOOR_S
    return {rank: _liveness(state, silent_after_s) for rank, state in ranks.items()}


def _liveness(state: store_pb2.RankState, silent_after_s: float) -> Liveness:
    if state.life == store_pb2.LIFE_EXITED or state.process_state in ("Z", "X"):
        return Liveness.DEAD
    if state.process_state in ("T", "t"):
        return Liveness.STOPPED
    if state.silent_s > silent_after_s:
        return Liveness.SILENT
    return Liveness.ALIVE


_COUNTED = (common_pb2.RECORDER_SOURCE_UNSPECIFIED, common_pb2.RECORDER_SOURCE_GENERIC)
"""Recorders whose numbers count the collectives of a group. NCCL's mix them with point-to-point calls."""

_CALLS_FOLLOWED = 64
"""Most calls of a group that are looked at, the oldest first: members of a group are seldom more than a few apart."""

_OPPOSITE = {
    common_pb2.DIRECTION_SEND: common_pb2.DIRECTION_RECV,
    common_pb2.DIRECTION_RECV: common_pb2.DIRECTION_SEND,
}

_Counters = common_pb2.GroupProgress | common_pb2.ChannelProgress
"""Calls ``completed + 1`` to ``enqueued`` are pending."""


def calls_on_hosts(
    ranks: Mapping[int, store_pb2.RankState], liveness: Mapping[int, Liveness], in_calls: Collection[int]
) -> Iterator[SharedCall]:
    """Yield the calls that are pending on a rank which is alive, by group and number.

    ``in_calls``: ranks whose stacks show that they wait in a call. Sends of others are buffered, so that they may run
    on: these hold nobody up for certain.
    """
    groups: dict[GroupId, dict[int, common_pb2.GroupProgress]] = {}
    channels: dict[tuple[int, str, int, common_pb2.Direction], common_pb2.ChannelProgress] = {}
    for identity, rank, group in group_uses(ranks):
        if group.source in _COUNTED:
            groups.setdefault(identity, {})[rank] = group
    for rank, state in ranks.items():
        for channel in state.progress.channels:
            channels[rank, channel.group, channel.peer, channel.direction] = channel
    for (name, runs), reports in groups.items():
        waiters = {
            rank: group
            for rank, group in sorted(reports.items())
            if group.enqueued > group.completed and liveness[rank] == Liveness.ALIVE
        }
        if waiters:
            members = members_of(runs)
            arrived = dict.fromkeys(members, 0) | {r: _arrived(group, liveness[r]) for r, group in reports.items()}
            yield from _calls((name, members), COLLECTIVE, waiters, arrived, waiters)
    for (rank, name, peer, direction), channel in channels.items():
        if channel.enqueued > channel.completed and liveness[rank] == Liveness.ALIVE:
            other = channels.get((peer, name, rank, _OPPOSITE[direction]))
            arrived = {peer: _arrived(other, liveness[peer]) if other else 0}
            is_send = direction == common_pb2.DIRECTION_SEND
            held = in_calls if is_send else (rank,)
            yield from _calls((name, (rank, peer)), SEND if is_send else RECV, {rank: channel}, arrived, held)


def _arrived(call: _Counters, liveness: Liveness) -> int:
    # A dead or stopped rank has entered calls that it cannot take part in: it has only arrived where it has completed.
    return call.completed if liveness <= Liveness.STOPPED else call.enqueued


def _calls(
    group: tuple[str, tuple[int, ...]],
    op: str,
    waiters: Mapping[int, _Counters],
    arrived: Mapping[int, int],
    held: Collection[int],
) -> Iterator[SharedCall]:
    """Yield the oldest pending call of each of ``waiters``, and those at which members are missing first.

    Each wait for a member is in one of them: what no waiter has pending is left out.
    """
    newest = max(one.enqueued for one in waiters.values())
    done = min(one.completed for one in waiters.values())
    seqs = {one.completed + 1 for one in waiters.values()} | {at + 1 for at in arrived.values() if done < at < newest}
    for seq in sorted(seqs)[:_CALLS_FOLLOWED]:
        there = tuple(rank for rank, one in waiters.items() if one.completed < seq <= one.enqueued)
        if there:
            fronts = there if held is waiters else tuple(rank for rank in there if rank in held)
            missing = tuple(rank for rank, at in arrived.items() if at < seq)
            yield SharedCall(group, seq, op, there, fronts, missing)
