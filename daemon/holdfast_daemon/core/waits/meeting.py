"""Meetings: where ranks wait for each other. A process group is one, each side of a channel is one.

In all of them one rule holds: a rank with a pending call at ``seq`` waits for each member that
has not arrived at ``seq``. A meeting says who has arrived where and who is pending, once for
all its members, so that a group of n ranks costs n entries and not n x n edges.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from holdfast_daemon.core.waits.liveness import Liveness
from holdfast_proto.v1 import common_pb2, store_pb2

_COUNTED = (common_pb2.RECORDER_SOURCE_UNSPECIFIED, common_pb2.RECORDER_SOURCE_GENERIC)
"""Recorders whose numbers count the collectives of a group. NCCL's mix them with point-to-point calls."""

COLLECTIVE = "collective"
SEND = "send"
RECV = "recv"

_OPPOSITE = {
    common_pb2.DIRECTION_SEND: common_pb2.DIRECTION_RECV,
    common_pb2.DIRECTION_RECV: common_pb2.DIRECTION_SEND,
}


@dataclass(frozen=True)
class Waiter:
    """A rank whose calls ``completed + 1`` to ``enqueued`` are pending."""

    rank: int
    enqueued: int
    completed: int
    stalled_s: float


@dataclass(frozen=True)
class Meeting:
    """One group, or one side of one channel."""

    group: str
    op: str
    members: tuple[int, ...]
    arrived: Mapping[int, int]
    """Rank that can be waited for here -> the newest seq at which it has arrived."""
    waiters: tuple[Waiter, ...]
    """Members with pending calls, the newest ``enqueued`` first."""

    @property
    def strong(self) -> bool:
        """Whether a pending call certainly holds its rank up. Sends are buffered, so that their rank may run on."""
        return self.op != SEND

    @cached_property
    def pending_seq(self) -> int:
        """Seq of the oldest pending call."""
        return min(waiter.completed for waiter in self.waiters) + 1

    @property
    def has_waits(self) -> bool:
        """Whether any member waits for another."""
        return min(self.arrived.values()) < self.waiters[0].enqueued

    @property
    def waiting(self) -> Iterator[Waiter]:
        """Members that wait for another."""
        least = min(self.arrived.values())
        return (waiter for waiter in self.waiters if waiter.enqueued > least)

    @cached_property
    def oldest_waiters(self) -> tuple[Waiter, ...]:
        """Members in which the oldest pending call is not complete."""
        return tuple(waiter for waiter in self.waiters if waiter.completed < self.pending_seq)

    @property
    def everyone_arrived(self) -> bool:
        """Whether all members have entered the oldest pending call, and it still does not complete."""
        return self.strong and min(self.arrived.values()) >= self.pending_seq

    def waiters_for(self, rank: int) -> Iterator[Waiter]:
        """Yield the members that wait for ``rank``."""
        arrived = self.arrived[rank]
        for waiter in self.waiters:
            if waiter.enqueued <= arrived:
                return
            yield waiter

    def awaited_seq(self, waiter: Waiter, rank: int) -> int:
        """Return the oldest call in which ``waiter`` waits for ``rank``."""
        return max(waiter.completed, self.arrived[rank]) + 1


def meetings(ranks: Mapping[int, store_pb2.RankState], liveness: Mapping[int, Liveness]) -> list[Meeting]:
    """Return the meetings in which a rank that is alive has a pending call."""
    return [*_group_meetings(ranks, liveness), *_channel_meetings(ranks, liveness)]


def _arrived(call: common_pb2.GroupProgress | common_pb2.ChannelProgress, liveness: Liveness) -> int:
    # A dead or stopped rank has entered calls that it cannot take part in: it has only arrived where it has completed.
    return call.completed if liveness <= Liveness.STOPPED else call.enqueued


def _group_meetings(ranks: Mapping[int, store_pb2.RankState], liveness: Mapping[int, Liveness]) -> Iterator[Meeting]:
    # Processes may use one name for groups of different members, but each has only one group of a name. So name, first
    # member and size identify a group. Comparing all members would cost more than the rest of the analysis.
    groups: dict[tuple[str, int, int], list[tuple[int, common_pb2.GroupProgress]]] = {}
    for rank, state in ranks.items():
        for group in state.progress.groups:
            if group.members and group.source in _COUNTED:
                key = (group.group, group.members[0], len(group.members))
                groups.setdefault(key, []).append((rank, group))
    for (name, _, _), reports in groups.items():
        waiters = [
            Waiter(rank, group.enqueued, group.completed, ranks[rank].stalled_s)
            for rank, group in reports
            if group.enqueued > group.completed and liveness[rank] == Liveness.ALIVE
        ]
        if waiters:
            members = tuple(reports[0][1].members)
            arrived = dict.fromkeys(members, 0)
            arrived.update((rank, _arrived(group, liveness[rank])) for rank, group in reports)
            yield Meeting(name, COLLECTIVE, members, arrived, _newest_first(waiters))


def _channel_meetings(ranks: Mapping[int, store_pb2.RankState], liveness: Mapping[int, Liveness]) -> Iterator[Meeting]:
    channels = {
        (rank, channel.group, channel.peer, channel.direction): channel
        for rank, state in ranks.items()
        for channel in state.progress.channels
    }
    for (rank, group, peer, direction), channel in channels.items():
        if channel.enqueued <= channel.completed or liveness[rank] != Liveness.ALIVE:
            continue
        other = channels.get((peer, group, rank, _OPPOSITE[direction]))
        arrived = _arrived(other, liveness[peer]) if other else 0
        op = SEND if direction == common_pb2.DIRECTION_SEND else RECV
        waiter = Waiter(rank, channel.enqueued, channel.completed, ranks[rank].stalled_s)
        yield Meeting(group, op, (rank, peer), {peer: arrived}, (waiter,))


def _newest_first(waiters: list[Waiter]) -> tuple[Waiter, ...]:
    return tuple(sorted(waiters, key=lambda waiter: (-waiter.enqueued, waiter.rank)))
