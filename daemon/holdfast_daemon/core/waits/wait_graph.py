"""The wait-for graph of all ranks, and the ranks at its root: who holds the others up.

Rank r with a pending call at seq s of a group waits for each member that has not arrived at s. With a pending call in a
channel it waits for its peer. A rank that waits for nobody and that others wait for is a root.

Edges of sends are weaker, because a rank that only sends may run on. Where all edges lead round in a circle, a rank
in it with nothing but sends pending is the root, unless its stack shows that it waits in one of them. A circle without
such a rank is a mismatch in the order of calls.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from holdfast_daemon.core.waits.awaited import Awaited, Wait
from holdfast_daemon.core.waits.liveness import Liveness, liveness_of
from holdfast_daemon.core.waits.meeting import COLLECTIVE, RECV, SEND, Meeting, meetings
from holdfast_daemon.core.waits.root_search import NO_KNOT, search
from holdfast_proto.v1 import store_pb2

EDGES_KEPT = 256
"""Most edges of an analysis: enough to explain a hang of any size."""

EDGES_OF_A_CALL = 8
"""Most edges for one rank in one call that come first: as many ranks as people are shown. Without a limit, one call of
many ranks would use up all edges. The number of all that wait there is in each of them."""

_ROOTS_WEIGHED = 16
"""Most roots whose waiters are counted transitively, and whose missed calls are reported. Each count is a search of the
graph; the order of further roots is decided by their direct waits."""

_EDGES_OF_A_ROOT = 32
"""Most edges of one root where there are several, so that one root does not use up all."""


@dataclass(frozen=True)
class ArrivedCall:
    """A pending call that all members have entered. None of the members that it holds waits for anything else."""

    group: str
    seq: int
    members: tuple[int, ...]
    op: str
    held: tuple[int, ...]
    """Members in which it is not complete."""

    @property
    def holds_a_minority(self) -> bool:
        """Whether the call is complete in most members: they have got all data that they wanted, so transport works."""
        return self.op == COLLECTIVE and 2 * len(self.held) < len(self.members)


@dataclass(frozen=True)
class MissedCall:
    """The call in which others have waited longest for a rank."""

    rank: int
    group: str
    seq: int
    op: str
    waiters: tuple[int, ...]
    """Ranks that wait for it there, ascending."""
    elsewhere: int
    """Number of further ranks that wait for it in other calls."""


@dataclass(frozen=True)
class WaitAnalysis:
    """What the graph shows at one moment. Whether that is a hang, the deadlines decide: the graph knows no time."""

    roots: tuple[int, ...]
    """Ranks that others wait for, and that no call of ``everyone_arrived`` holds; the likeliest cause first."""
    cycle: tuple[int, ...]
    """Ranks of which each waits for the next, and the last for the first; the most awaited first. Mostly empty."""
    everyone_arrived: tuple[ArrivedCall, ...]
    """Calls that the transport or a device does not complete, the one that has taken longest first."""
    edges: tuple[store_pb2.WaitEdge, ...]
    """Waits within the cycle, then other waits for it and the roots, then one wait of each rank that leads on to them;
    at most EDGES_KEPT. Each has the number of all that wait in its call."""
    group: str
    """Group in which others have waited longest for the likeliest root. Without roots, the same for the cycle; else the
    group of the first call of ``everyone_arrived``; else empty."""
    seq: int
    """Call of ``group`` at which the likeliest root is missing."""
    op: str
    """Kind of that call: "collective", "recv" or "send"."""
    knot: tuple[int, ...] = ()
    """All ranks that wait for each other, ascending; ``cycle`` is one way round among them."""
    missed: tuple[MissedCall, ...] = ()
    """Missed calls of the first roots and ranks of cycle and knot, in this order."""
    waiting: int = 0
    """Number of ranks that wait for the roots or the cycle, directly or through others, and of those in the cycle."""


@dataclass(frozen=True)
class WaitGraph:
    """The wait-for graph, as meetings instead of edges: see :class:`Meeting`."""

    liveness: Mapping[int, Liveness]
    meetings: tuple[Meeting, ...]
    in_calls: Collection[int] = ()
    """Ranks whose stacks show that they wait in a call: see :func:`root_search.search`."""

    def analysis(self) -> WaitAnalysis:
        """Return who holds the others up. Nearly linear in the number of group memberships."""
        awaited = Awaited(self.meetings)
        found = search(self.liveness, self.meetings, awaited, self.in_calls)
        arrived = self._arrived_calls()
        # A rank in a call that everyone has entered waits for the transport and not for a rank. It is the end of the
        # graph all the same, because the counters show no rank that it waits for: it must not be blamed.
        held = {rank for call in arrived for rank in call.held}
        roots = self._likeliest_first([rank for rank in found.roots if rank not in held], awaited)
        knot = min(found.knots, key=lambda knot: (-awaited.direct_count(knot.cycle[0]), knot.cycle), default=NO_KNOT)
        cycle = knot.cycle
        ends = list(dict.fromkeys((*roots, *cycle, *knot.ranks)))
        missed = tuple(_missed_call(rank, awaited) for rank in ends[:_ROOTS_WEIGHED])
        first = missed[0] if missed else arrived[0] if arrived else None
        # The cycle's own waits come first: it is these that a verdict on it shows.
        waits = chain(_waits_of_cycle(cycle, awaited), _explaining_waits((*roots, *cycle), awaited))
        edges = {(wait[1].rank, wait[2], id(wait[0])): wait for wait in islice(waits, EDGES_KEPT + len(cycle))}
        return WaitAnalysis(
            roots=roots,
            cycle=cycle,
            everyone_arrived=arrived,
            edges=tuple(_counted_edges(islice(edges.values(), EDGES_KEPT))),
            group=first.group if first else "",
            seq=first.seq if first else 0,
            op=first.op if first else "",
            knot=knot.ranks,
            missed=missed,
            waiting=len({*cycle, *(waiter.rank for _, waiter, _ in awaited.towards((*roots, *cycle)))}),
        )

    def _arrived_calls(self) -> tuple[ArrivedCall, ...]:
        suspects = [meeting for meeting in self.meetings if meeting.everyone_arrived]
        suspects.sort(key=lambda meeting: -max(waiter.stalled_s for waiter in meeting.oldest_waiters))
        waits: dict[int, list[Meeting]] = {}
        for meeting in self.meetings if suspects else ():
            for waiter in meeting.waiting if meeting.strong else ():
                waits.setdefault(waiter.rank, []).append(meeting)
        senders = {(meeting.group, meeting.members) for meeting in self.meetings if meeting.op == SEND}
        calls = [(meeting, _arrived_call(meeting, senders)) for meeting in suspects]
        # A call that is queued behind another pending call cannot complete before that one: it proves nothing about
        # the transport.
        return tuple(
            call
            for meeting, call in calls
            if all(other is meeting for rank in call.held for other in waits.get(rank, ()))
        )

    def _likeliest_first(self, roots: Sequence[int], awaited: Awaited) -> tuple[int, ...]:
        """Sort by liveness (dead, stopped, silent, alive), then by the number of ranks held up, then by rank."""
        direct = {rank: awaited.direct_count(rank) for rank in roots}
        liveness = {rank: self.liveness.get(rank, Liveness.SILENT) for rank in roots}
        rough = sorted(roots, key=lambda rank: (liveness[rank], -direct[rank], rank))
        held_up = {rank: sum(1 for _ in awaited.towards([rank])) for rank in rough[:_ROOTS_WEIGHED]}
        return tuple(sorted(rough, key=lambda rank: (liveness[rank], -held_up.get(rank, 0), -direct[rank], rank)))


def analyse(ranks: Mapping[int, store_pb2.RankState], in_calls: Collection[int] = ()) -> WaitAnalysis:
    """Return who holds the others up in one generation.

    ``ranks``: global rank -> its newest state; a member of a group that it lacks counts as silent and as never having
    arrived. ``in_calls``: ranks whose stacks show that they wait in a call.
    """
    liveness = liveness_of(ranks)
    graph = WaitGraph(liveness=liveness, meetings=tuple(meetings(ranks, liveness)), in_calls=in_calls)
    return graph.analysis()


def _missed_call(rank: int, awaited: Awaited) -> MissedCall:
    meeting = awaited.meetings_for(rank)[0]
    there = list(meeting.waiters_for(rank))
    everywhere = {waiter.rank for _, waiter, _ in awaited.direct(rank)}
    return MissedCall(
        rank=rank,
        group=meeting.group,
        seq=min(meeting.awaited_seq(waiter, rank) for waiter in there),
        op=meeting.op,
        waiters=tuple(sorted(waiter.rank for waiter in there)),
        elsewhere=len(everywhere) - len(there),
    )


def _waits_of_cycle(cycle: Sequence[int], awaited: Awaited) -> Iterator[Wait]:
    """Yield one wait of each rank of a cycle for the next one."""
    for waiter, rank in zip(cycle, (*cycle[1:], *cycle[:1]), strict=True):
        yield from islice((wait for wait in awaited.direct(rank) if wait[1].rank == waiter), 1)


def _explaining_waits(ends: Sequence[int], awaited: Awaited) -> Iterator[Wait]:
    """Yield the waits that lead to ``ends``: first direct ones of each call, then one of each other rank."""
    direct: set[int] = set()
    for rank in ends:
        waits = (
            (meeting, waiter, rank)
            for meeting in awaited.meetings_for(rank)
            for waiter in islice(meeting.waiters_for(rank), EDGES_OF_A_CALL)
        )
        for wait in islice(waits, _EDGES_OF_A_ROOT if len(ends) > 1 else None):
            direct.add(wait[1].rank)
            yield wait
    for wait in awaited.towards(ends):
        if wait[1].rank not in direct:
            yield wait


def _counted_edges(waits: Iterable[Wait]) -> Iterator[store_pb2.WaitEdge]:
    """Yield waits as messages. Each says how many ranks wait in its call: most of them may have no edge."""
    counts: dict[tuple[int, int], Counter[int]] = {}
    for meeting, waiter, awaited in waits:
        key = id(meeting), awaited
        if key not in counts:
            counts[key] = Counter(meeting.awaited_seq(other, awaited) for other in meeting.waiters_for(awaited))
        seq = meeting.awaited_seq(waiter, awaited)
        yield store_pb2.WaitEdge(
            waiter=waiter.rank,
            awaited=awaited,
            group=meeting.group,
            seq=seq,
            op=meeting.op,
            waiters=counts[key][seq],
        )


def _arrived_call(meeting: Meeting, senders: Collection[tuple[str, tuple[int, ...]]]) -> ArrivedCall:
    held = {waiter.rank for waiter in meeting.oldest_waiters}
    if meeting.op == RECV and (meeting.group, meeting.members[::-1]) in senders:
        held.update(meeting.members)
    return ArrivedCall(meeting.group, meeting.pending_seq, meeting.members, meeting.op, tuple(sorted(held)))
