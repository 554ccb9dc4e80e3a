"""Who holds the others up on hosts, by the counters of their groups: the ranks at the root of the wait-for graph.

Rank r with a pending call at seq s of a group waits for each member that has not arrived at s. With a pending call in a
channel it waits for its peer. A rank that waits for nobody and that others wait for is a root.

Edges of sends are weaker, because a rank that only sends may run on. Where all edges lead round in a circle, a rank
in it with nothing but sends pending is the root, unless its stack shows that it waits in one of them. A circle without
such a rank is a mismatch in the order of calls.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from holdfast_core.diagnosis.hosts.host_counters import Liveness, calls_on_hosts, liveness_of
from holdfast_core.diagnosis.wait_for_graph import (
    COLLECTIVE,
    RECV,
    SEND,
    GraphPart,
    GroupKey,
    SharedCall,
    WaitForGraph,
    circle_through,
)
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
    deadlock: tuple[int, ...] = ()
    """All ranks that wait for each other, ascending; ``cycle`` is one way round among them."""
    missed: tuple[MissedCall, ...] = ()
    """Missed calls of the first roots and ranks of cycle and deadlock, in this order."""
    waiting: int = 0
    """Number of ranks that wait for the roots or the cycle, directly or through others, and of those in the cycle."""


def analyse(ranks: Mapping[int, store_pb2.RankState], in_calls: Collection[int] = ()) -> WaitAnalysis:
    """Return who holds the others up in one generation. Nearly linear in the number of group memberships.

    ``ranks``: global rank -> its newest state; a member of a group that it lacks counts as silent and as never having
    arrived. ``in_calls``: ranks whose stacks show that they wait in a call.
    """
    liveness = liveness_of(ranks)
    stalled_s = {rank: state.stalled_s for rank, state in ranks.items()}
    return _Analysis(liveness, stalled_s, tuple(calls_on_hosts(ranks, liveness, in_calls))).result()


class _Wait(NamedTuple):
    """A rank that waits for another one in a call."""

    waiter: int
    awaited: int
    call: SharedCall
    waiters: int
    """Number of ranks that wait for ``awaited`` there."""


class _Missed(NamedTuple):
    """A call that a rank has not made, and the ranks of which it is the first one in this group to lack that rank."""

    call: SharedCall
    waiters: tuple[int, ...]


class _Analysis:
    def __init__(
        self, liveness: Mapping[int, Liveness], stalled_s: Mapping[int, float], calls: Sequence[SharedCall]
    ) -> None:
        self._liveness = liveness
        self._stalled_s = stalled_s
        self._calls = calls
        self._missed_by: dict[int, list[SharedCall]] = {}
        """Rank -> calls that it misses, by group and number."""
        for call in calls:
            for rank in call.missing:
                self._missed_by.setdefault(rank, []).append(call)

    def result(self) -> WaitAnalysis:
        found, deadlocks = self._ends()
        arrived = self._arrived_calls()
        # A rank in a call that everyone has entered waits for the transport and not for a rank. It is the end of the
        # graph all the same, because the counters show no rank that it waits for: it must not be blamed.
        held = {rank for call in arrived for rank in call.held}
        roots = self._likeliest_first([rank for rank in found if rank not in held])
        cycle, deadlock = min(deadlocks, key=lambda one: (-self._waiters_of(one[0][0]), one[0]), default=((), ()))
        ends = list(dict.fromkeys((*roots, *cycle, *deadlock)))
        missed = tuple(self._missed_call(rank) for rank in ends[:_ROOTS_WEIGHED])
        first = missed[0] if missed else arrived[0] if arrived else None
        # The cycle's own waits come first: it is these that a verdict on it shows.
        waits = chain(self._waits_of_cycle(cycle), self._explaining_waits((*roots, *cycle)))
        edges = {(wait.waiter, wait.awaited, id(wait.call)): wait for wait in islice(waits, EDGES_KEPT + len(cycle))}
        return WaitAnalysis(
            roots=roots,
            cycle=cycle,
            everyone_arrived=arrived,
            edges=tuple(map(_edge, islice(edges.values(), EDGES_KEPT))),
            group=first.group if first else "",
            seq=first.seq if first else 0,
            op=first.op if first else "",
            deadlock=deadlock,
            missed=missed,
            waiting=len({*cycle, *(waiter for waiter, _, _ in self._towards((*roots, *cycle)))}),
        )

    def _ends(self) -> tuple[list[int], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """Return the roots, and for each deadlock a shortest circle through its most awaited rank, and all its ranks.

        A circle that only pending sends hold together is cut at the ranks that have nothing but sends pending. These
        may have sent ahead, run on, and be stuck where no counter shows it: they are roots. There are two exceptions:

        * The stacks of ranks show that they wait in a call: their sends hold them up.
        * Other ranks of the circle wait for each other without any send. They stay stuck even if the senders run on:
          then it is a deadlock.
        """
        calls = [call for call in self._calls if call.missing]
        graph = WaitForGraph({*self._liveness, *self._missed_by}, calls, lambda call: call.waiters)
        roots: list[int] = []
        deadlocks: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for end in graph.ends():
            if not end.is_circle:
                # A rank that waits for nobody is a root only if others wait for it: else it has no part in the hang.
                roots += [rank for rank in end.ranks if rank in self._missed_by]
                continue
            # Keep only the edges that hold their rank up for certain, and look for ends again. If there is no circle
            # among these, one that leads to an end is a deadlock too. If there is none at all, sends have held this one
            # together, and its ends are the roots.
            certain = WaitForGraph(end.ranks, end.calls)
            ends = list(certain.ends())
            circles = [one for one in ends if one.is_circle] or [one for one in certain.parts() if one.is_circle]
            deadlocks += [(self._cycle(one), end.ranks) for one in circles]
            if not circles:
                roots += [rank for one in ends for rank in one.ranks]
        return roots, deadlocks

    def _cycle(self, part: GraphPart) -> tuple[int, ...]:
        """Return a shortest circle through the most awaited rank.

        Where one rank calls in another order than all others, they all wait for it: it is the most awaited.
        """
        first = min(part.ranks, key=lambda rank: (-self._waiters_of(rank), rank))
        return tuple(circle_through(first, part.calls, set(part.ranks)))

    def _arrived_calls(self) -> tuple[ArrivedCall, ...]:
        oldest: dict[int, SharedCall] = {}
        for call in self._calls:
            oldest.setdefault(id(call.group), call)
        suspects = [call for call in oldest.values() if not call.missing and call.op != SEND]
        suspects.sort(key=lambda call: -self._longest_s(call.waiters))
        waits: dict[int, set[int]] = {}
        for call in self._calls if suspects else ():
            for rank in call.waiters if call.missing and call.op != SEND else ():
                waits.setdefault(rank, set()).add(id(call.group))
        senders = {call.group for call in self._calls if call.op == SEND}
        # A call that is queued behind another pending call cannot complete before that one: it proves nothing about
        # the transport.
        found = ((_arrived_call(call, senders), {id(call.group)}) for call in suspects)
        return tuple(call for call, own in found if all(waits.get(rank, own) <= own for rank in call.held))

    def _likeliest_first(self, roots: Sequence[int]) -> tuple[int, ...]:
        """Sort by liveness (dead, stopped, silent, alive), then by the number of ranks held up, then by rank."""
        direct = {rank: self._waiters_of(rank) for rank in roots}
        liveness = {rank: self._liveness.get(rank, Liveness.SILENT) for rank in roots}
        rough = sorted(roots, key=lambda rank: (liveness[rank], -direct[rank], rank))
        held_up = {rank: sum(1 for _ in self._towards([rank])) for rank in rough[:_ROOTS_WEIGHED]}
        return tuple(sorted(rough, key=lambda rank: (liveness[rank], -held_up.get(rank, 0), -direct[rank], rank)))

    def _missed_groups(self, rank: int) -> list[list[_Missed]]:
        """Return the calls that a rank misses, by group: first the group in which a rank has waited longest for it.

        That is the call that ``rank`` missed first, because the others came to later calls only after it. Sends come
        last: who has sent may run on.
        """
        return sorted(
            self._missed_in(rank),
            key=lambda calls: (calls[0].call.op == SEND, -max(self._longest_s(one.waiters) for one in calls)),
        )

    def _missed_in(self, rank: int) -> list[list[_Missed]]:
        groups: dict[int, list[SharedCall]] = {}
        for call in self._missed_by.get(rank, ()):
            groups.setdefault(id(call.group), []).append(call)
        return [list(_by_first_wait(calls)) for calls in groups.values()]

    def _direct(self, rank: int) -> Iterator[Iterator[_Wait]]:
        """Yield the waits for a rank itself, those of each group by themselves."""
        for calls in self._missed_groups(rank):
            yield (_Wait(waiter, rank, one.call, len(one.waiters)) for one in reversed(calls) for waiter in one.waiters)

    def _waiters_of(self, rank: int) -> int:
        """Return the number of waits for a rank itself."""
        return sum(len(one.waiters) for calls in self._missed_in(rank) for one in calls)

    def _longest_s(self, ranks: Sequence[int]) -> float:
        return max((self._stalled_s[rank] for rank in ranks), default=0.0)

    def _towards(self, ends: Sequence[int]) -> Iterator[tuple[int, int, SharedCall]]:
        """Yield one wait of each rank that waits for ``ends``, directly or through others; the nearest first."""
        reached = set(ends)
        passed: set[int] = set()
        queue = deque(ends)
        while queue:
            awaited = queue.popleft()
            for call in self._missed_by.get(awaited, ()):
                if id(call) in passed:
                    continue  # all that wait there are reached
                passed.add(id(call))
                for waiter in call.waiters:
                    if waiter not in reached:
                        reached.add(waiter)
                        queue.append(waiter)
                        yield waiter, awaited, call

    def _missed_call(self, rank: int) -> MissedCall:
        first, *others = self._missed_groups(rank)
        there = {waiter for one in first for waiter in one.waiters}
        everywhere = there.union(*(one.waiters for calls in others for one in calls))
        call = first[0].call
        return MissedCall(rank, call.group[0], call.seq, call.op, tuple(sorted(there)), len(everywhere) - len(there))

    def _waits_of_cycle(self, cycle: Sequence[int]) -> Iterator[_Wait]:
        """Yield one wait of each rank of a cycle for the next one."""
        for waiter, rank in zip(cycle, (*cycle[1:], *cycle[:1]), strict=True):
            yield from islice((wait for waits in self._direct(rank) for wait in waits if wait.waiter == waiter), 1)

    def _explaining_waits(self, ends: Sequence[int]) -> Iterator[_Wait]:
        """Yield the waits that lead to ``ends``: first direct ones of each call, then one of each other rank."""
        direct: set[int] = set()
        for rank in ends:
            waits = chain.from_iterable(islice(waits, EDGES_OF_A_CALL) for waits in self._direct(rank))
            for wait in islice(waits, _EDGES_OF_A_ROOT if len(ends) > 1 else None):
                direct.add(wait.waiter)
                yield wait
        for waiter, awaited, call in self._towards(ends):
            if waiter not in direct:
                counts = (len(one.waiters) for calls in self._missed_in(awaited) for one in calls if one.call is call)
                yield _Wait(waiter, awaited, call, next(counts))


def _by_first_wait(calls: Sequence[SharedCall]) -> Iterator[_Missed]:
    """Yield calls of one group with the ranks that wait in none of the earlier ones."""
    seen: set[int] = set()
    for call in calls:
        waiters = tuple(rank for rank in call.waiters if rank not in seen) if seen else call.waiters
        if waiters:
            yield _Missed(call, waiters)
        if len(calls) > 1:
            seen.update(waiters)


def _edge(wait: _Wait) -> store_pb2.WaitEdge:
    return store_pb2.WaitEdge(
        waiter=wait.waiter,
        awaited=wait.awaited,
        group=wait.call.group[0],
        seq=wait.call.seq,
        op=wait.call.op,
        waiters=wait.waiters,
    )


def _arrived_call(call: SharedCall, senders: Collection[GroupKey]) -> ArrivedCall:
    name, members = call.group
    held = {*call.waiters, *(members if call.op == RECV and (name, members[::-1]) in senders else ())}
    return ArrivedCall(name, call.seq, members, call.op, tuple(sorted(held)))
