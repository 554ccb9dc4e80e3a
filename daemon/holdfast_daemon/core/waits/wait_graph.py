"""The wait-for graph of all ranks, and the ranks at its root: who holds everybody up.

Rank r, pending in a group at seq s, waits for each member that has not arrived at s; pending in a
channel, for its peer. A rank that waits for nobody and that others wait for is a root. Edges of
sends are weaker, because a rank that only sends may be running on: where following all edges
leads round in a circle, a rank in it with nothing but sends pending is the root. A circle
without such a rank is a mismatch in the order of calls.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from holdfast_daemon.core.waits.awaited import Awaited, Wait
from holdfast_daemon.core.waits.meeting import Meeting, meetings
from holdfast_daemon.core.waits.root_search import search
from holdfast_daemon.core.waits.standing import Standing, standings
from holdfast_proto.v1 import store_pb2

EDGES_KEPT = 256
"""Edges of a finding, at most: enough to tell the story of a hang of any size."""

_ROOTS_WEIGHED = 16
"""Roots whose waiters are counted transitively; beyond these, direct waits decide the order."""


@dataclass(frozen=True)
class ArrivedCall:
    """A pending call at which all members have arrived."""

    group: str
    seq: int
    members: tuple[int, ...]
    op: str


@dataclass(frozen=True)
class Finding:
    """What the graph tells. Time plays no part in it: whether it is a hang is for the deadlines to say."""

    roots: tuple[int, ...]
    """Ranks that hold others up, the likeliest first."""
    cycle: tuple[int, ...]
    """Ranks of which each waits for the next and the last for the first, the most awaited first; mostly empty."""
    everyone_arrived: tuple[ArrivedCall, ...]
    """Without a root or cycle: the calls that transport or device do not complete."""
    edges: tuple[store_pb2.WaitEdge, ...]
    """Waits for the roots and the cycle first, then one of each rank that leads on to them; at most EDGES_KEPT."""
    group: str
    """Where others have waited longest for the likeliest root. Without roots: the same for the cycle, else the group
    of the first call at which everyone has arrived, else empty."""
    seq: int
    """The call of ``group`` at which the likeliest root is missing."""
    op: str
    """Of that call: "collective", "recv" or "send"."""


@dataclass(frozen=True)
class WaitGraph:
    """Who waits for whom, in compact form: see Meeting."""

    standing: Mapping[int, Standing]
    meetings: tuple[Meeting, ...]

    def roots(self) -> Finding:
        """Return who holds everybody up. Near linear in the number of group memberships."""
        awaited = Awaited(self.meetings)
        ends = search(self.standing, self.meetings, awaited)
        roots = self._likeliest_first(ends.roots, awaited)
        cycle = min(ends.cycles, key=lambda ranks: (-awaited.direct_count(ranks[0]), ranks), default=())
        arrived = tuple(_arrived_call(meeting) for meeting in self.meetings if meeting.everyone_arrived)
        group, seq, op = _missed_call((*roots, *cycle), arrived, awaited)
        return Finding(
            roots=roots,
            cycle=cycle,
            everyone_arrived=arrived,
            edges=tuple(_edge(wait) for wait in islice(_story((*roots, *cycle), awaited), EDGES_KEPT)),
            group=group,
            seq=seq,
            op=op,
        )

    def _likeliest_first(self, roots: Sequence[int], awaited: Awaited) -> tuple[int, ...]:
        """Sort: dead, stopped, silent, alive; then by the number of ranks held up; then by rank."""
        direct = {rank: awaited.direct_count(rank) for rank in roots}
        standing = {rank: self.standing.get(rank, Standing.SILENT) for rank in roots}
        rough = sorted(roots, key=lambda rank: (standing[rank], -direct[rank], rank))
        held_up = {rank: sum(1 for _ in awaited.towards([rank])) for rank in rough[:_ROOTS_WEIGHED]}
        return tuple(sorted(rough, key=lambda rank: (standing[rank], -held_up.get(rank, 0), -direct[rank], rank)))


def build(ranks: Mapping[int, store_pb2.RankState]) -> WaitGraph:
    """Return the wait-for graph of one generation. ``ranks``: global rank -> its newest state.

    A member of a group that ``ranks`` lacks counts as silent and as never having arrived.
    """
    standing = standings(ranks)
    return WaitGraph(standing=standing, meetings=tuple(meetings(ranks, standing)))


def find(ranks: Mapping[int, store_pb2.RankState]) -> Finding:
    """Return who holds everybody up, from the newest state of every rank of one generation."""
    return build(ranks).roots()


def _missed_call(ends: Sequence[int], arrived: Sequence[ArrivedCall], awaited: Awaited) -> tuple[str, int, str]:
    if ends:
        meeting = awaited.meetings_for(ends[0])[0]
        seq = min(meeting.awaited_seq(waiter, ends[0]) for waiter in meeting.waiters_for(ends[0]))
        return meeting.group, seq, meeting.op
    return (arrived[0].group, arrived[0].seq, arrived[0].op) if arrived else ("", 0, "")


def _story(ends: Sequence[int], awaited: Awaited) -> Iterator[Wait]:
    direct: set[int] = set()
    for rank in ends:
        for wait in awaited.direct(rank):
            direct.add(wait[1].rank)
            yield wait
    for wait in awaited.towards(ends):
        if wait[1].rank not in direct:
            yield wait


def _edge(wait: Wait) -> store_pb2.WaitEdge:
    meeting, waiter, awaited = wait
    seq = meeting.awaited_seq(waiter, awaited)
    return store_pb2.WaitEdge(waiter=waiter.rank, awaited=awaited, group=meeting.group, seq=seq, op=meeting.op)


def _arrived_call(meeting: Meeting) -> ArrivedCall:
    return ArrivedCall(meeting.group, meeting.pending_seq, meeting.members, meeting.op)
