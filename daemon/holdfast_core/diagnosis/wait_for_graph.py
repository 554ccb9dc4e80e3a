"""Where the wait-for graph ends: a hang spreads until every rank waits for some other one, and ends lead to the cause.

The nodes are ranks and the calls in which they wait. An edge leads from a rank to a call that holds it up, and from a
call to each rank that it misses. So a group of n ranks costs 2 n edges, and not n x n between its ranks.

A rank that no edge leaves is a root. A larger part of the graph that no edge leaves is a deadlock: all in it wait for
each other. Hosts and devices give different evidence, and so different edges. From there on the question is the same.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

GroupKey = tuple[str, tuple[int, ...]]
"""Name and members. Two processes may use one name for different groups; ids differ from rank to rank."""

COLLECTIVE = "collective"
SEND = "send"
RECV = "recv"


@dataclass(frozen=True)
class SharedCall:
    """One collective or message that is pending on some rank, or one pending batch of messages.

    Ranks wait for it, and it waits for ranks. How certain that is, each field says: readers of counters on hosts and of
    recorders on devices fill in what they know.
    """

    group: GroupKey
    """Of a message on hosts, the rank that waits and its peer."""
    seq: int
    """Number of the collective in its group, or of the message between two hosts; 0: it has none that both share."""
    op: str
    waiters: tuple[int, ...]
    """Ranks on which it is pending; on devices those of which it is the oldest pending call of the group. Ascending."""
    fronts: tuple[int, ...] = ()
    """Those of them that it certainly holds up. Others may wait for something older first, or run on."""
    missing: tuple[int, ...] = ()
    """Members that have certainly not made it, or are dead."""
    unclear: tuple[int, ...] = ()
    """Members of which nothing shows whether they have made it."""
    sides: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Different calls that were made under this number, and by whom; the most frequent first. Empty if all agree."""
    behind: tuple[int, ...] = ()
    """Members that have made it after another call that is still pending: a waiter too, or the other side."""
    inside: tuple[int, ...] = ()
    """Members whose host has not returned from making it, and that have nothing older pending."""
    unstarted: tuple[int, ...] = ()
    """Members whose device has not come to it, although nothing older is pending, while that of others has."""

    is_held_alone: bool = False
    """Whether one member alone still holds it, although it ends nowhere before that member has taken part."""

    is_counted: bool = True
    """Whether sends and receives were paired by number. If a ring has lost some, they are paired as pending ones."""
    peers: tuple[int, ...] = ()
    """Other sides of a call of transfers."""

    @property
    def parties(self) -> tuple[int, ...]:
        """Ranks that take part in it: the members of the group, or both sides of transfers. Ascending for these."""
        return self.group[1] if self.seq else tuple(sorted({*self.waiters, *self.peers}))

    @property
    def is_complete(self) -> bool:
        """Whether all members have made it, all the same, and it is the oldest pending call of each of them."""
        return not (self.missing or self.unclear or self.sides or self.behind)

    @property
    def awaited(self) -> Sequence[int]:
        """Ranks to which the graph leads on from here."""
        return () if self.sides else (*self.missing, *self.unclear) or self.behind


class GraphPart(NamedTuple):
    """A part of the graph in which each node leads to each other one, or a single node."""

    ranks: tuple[int, ...]
    """Ascending."""
    calls: tuple[SharedCall, ...]

    @property
    def is_circle(self) -> bool:
        """Whether ranks wait for each other here."""
        return bool(self.ranks and self.calls)


class WaitForGraph:
    """The wait-for graph of ``calls``, and of ``ranks``, which are all that the calls name and perhaps others.

    ``waiters``: which ranks of a call it holds up; those that it certainly does, if it is left out.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        calls: Sequence[SharedCall],
        waiters: Callable[[SharedCall], Iterable[int]] = lambda call: call.fronts,
    ) -> None:
        self._ranks = sorted(ranks)
        self._calls = calls
        number = {rank: i for i, rank in enumerate(self._ranks)}
        self._edges: list[list[int]] = [[] for _ in range(len(self._ranks) + len(calls))]
        for i, call in enumerate(calls, len(self._ranks)):
            for rank in waiters(call):
                if rank in number:
                    self._edges[number[rank]].append(i)
            self._edges[i] = [number[rank] for rank in call.awaited if rank in number]

    def ends(self) -> Iterator[GraphPart]:
        """Yield the parts that no edge leaves."""
        return map(self._part, terminal_components(self._edges))

    def parts(self) -> Iterator[GraphPart]:
        """Yield all parts."""
        return map(self._part, strong_components(self._edges))

    def _part(self, nodes: list[int]) -> GraphPart:
        size = len(self._ranks)
        ranks = sorted(self._ranks[node] for node in nodes if node < size)
        return GraphPart(tuple(ranks), tuple(self._calls[node - size] for node in sorted(nodes) if node >= size))


def circle_through(start: int, calls: Sequence[SharedCall], inside: Collection[int]) -> list[int]:
    """Return a shortest circle of ranks of ``inside`` through ``start``, each of which the next one certainly holds up.

    It begins with ``start``, which is alone in it if there is none.
    """
    held: dict[int, list[int]] = {}
    for i, call in enumerate(calls):
        for rank in call.fronts:
            held.setdefault(rank, []).append(i)
    passes: Counter[int] = Counter()

    def successors(rank: int) -> Iterator[int]:
        for i in held.get(rank, ()):
            passes[i] += 1
            # A rank does not wait for itself. So it takes two of them to reach all for whom a call waits, and no more.
            if passes[i] <= 2:
                yield from (to for to in calls[i].awaited if to != rank and to in inside)

    return shortest_circle(start, successors)


def terminal_components(successors: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the strong components that no edge leaves. Node i has the edges i -> ``successors[i]``."""
    components = strong_components(successors)
    component_of = [0] * len(successors)
    for i, component in enumerate(components):
        for node in component:
            component_of[node] = i
    for i, component in enumerate(components):
        if all(component_of[to] == i for node in component for to in successors[node]):
            yield component


def shortest_circle(start: int, successors: Callable[[int], Iterable[int]]) -> list[int]:
    """Return a shortest circle of edges through ``start``, in their order; ``start`` alone if there is none."""
    came_from: dict[int, int] = {}
    queue = deque([start])
    while queue and start not in came_from:  # a breadth-first search reaches ``start`` again by a shortest way
        node = queue.popleft()
        for to in successors(node):
            if to not in came_from:
                came_from[to] = node
                queue.append(to)
    path = [start]
    while start in came_from and came_from[path[-1]] != start:
        path.append(came_from[path[-1]])
    return [start, *reversed(path[1:])]


def strong_components(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components of a graph (Tarjan 1972, without recursion).

    Linear in nodes and edges. A component comes after every component that it leads to.
    """
    search = _Search(successors)
    for node in range(len(successors)):
        if search.found_at[node] < 0:
            search.run(node)
    return search.components


class _Search:
    def __init__(self, successors: Sequence[Sequence[int]]) -> None:
        self.components: list[list[int]] = []
        self.found_at = [-1] * len(successors)
        self._successors = successors
        self._low = [0] * len(successors)
        self._open: list[int] = []
        self._is_open = [False] * len(successors)
        self._found = 0

    def run(self, start: int) -> None:
        self._find(start)
        path = [(start, iter(self._successors[start]))]
        while path:
            node, rest = path[-1]
            for successor in rest:
                if self.found_at[successor] < 0:
                    self._find(successor)
                    path.append((successor, iter(self._successors[successor])))
                    break
                if self._is_open[successor]:
                    self._low[node] = min(self._low[node], self.found_at[successor])
            else:
                path.pop()
                if path:
                    parent = path[-1][0]
                    self._low[parent] = min(self._low[parent], self._low[node])
                self._close(node)

    def _find(self, node: int) -> None:
        self.found_at[node] = self._low[node] = self._found
        self._found += 1
        self._open.append(node)
        self._is_open[node] = True

    def _close(self, node: int) -> None:
        if self._low[node] < self.found_at[node]:
            return
        component: list[int] = []
        while not component or component[-1] != node:
            component.append(self._open.pop())
            self._is_open[component[-1]] = False
        self.components.append(component)
