"""Finds where the wait-for graph ends: roots, and cycles that no edge leads out of.

A hang spreads: soon every rank waits for some other one. Following the waits leads from any of them to the cause, so
the cause is where no edge leads on. In terms of graphs these are the terminal strong components: a component of one
rank is a root, a larger one is a knot, in which all wait for each other.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from holdfast_daemon.core.waits.awaited import Awaited
from holdfast_daemon.core.waits.graph_ends import shortest_circle, strong_components, terminal_components
from holdfast_daemon.core.waits.meeting import Meeting


@dataclass(frozen=True)
class Knot:
    """Ranks that wait for each other and for nobody else."""

    cycle: tuple[int, ...]
    """A shortest cycle through the most awaited rank, which comes first."""
    ranks: tuple[int, ...]
    """All ranks of the knot, ascending."""


NO_KNOT = Knot((), ())


@dataclass(frozen=True)
class Ends:
    """Where all waits lead."""

    roots: tuple[int, ...]
    knots: tuple[Knot, ...]


def search(ranks: Iterable[int], meetings: Iterable[Meeting], awaited: Awaited, in_calls: Collection[int] = ()) -> Ends:
    """Return the ends of the graph of ``ranks`` and all members of ``meetings``.

    A circle that only pending sends hold together is cut at the ranks that have nothing but sends pending. These
    may have sent ahead, run on, and be stuck where no counter shows it: they are roots. There are two exceptions:

    * The stacks of the ranks ``in_calls`` show that they wait in a call: their sends hold them up.
    * Other ranks of the circle wait for each other without any send. They stay stuck even if the senders run on: then
      it is a knot.
    """
    graph = _Graph(sorted({*ranks, *awaited.ranks}), meetings, in_calls)
    wanted = set(awaited.ranks)
    roots: list[int] = []
    knots: list[Knot] = []
    for component in terminal_components(graph.edges):
        if len(component) == 1:
            # A rank that waits for nobody is a root only if others wait for it: else it has no part in the hang.
            roots += [rank for rank in graph.ranks_of(component) if rank in wanted]
            continue
        # Inside the component, keep only the edges that hold their rank up for certain, and look for ends again. An
        # end of several nodes is a circle without a send. If there is none, a circle that leads to an end is a knot,
        # too. If there is no circle at all, sends have held this one together, and its ends are the roots.
        number = {node: i for i, node in enumerate(component)}
        strong = [[number[to] for to in graph.strong_edges[node] if to in number] for node in component]
        ends = list(terminal_components(strong))
        circles = _circles(ends) or _circles(strong_components(strong))
        members = tuple(sorted(graph.ranks_of(component)))
        knots += [Knot(_cycle(graph, [component[i] for i in part], awaited), members) for part in circles]
        if not circles:
            roots += graph.ranks_of(component[part[0]] for part in ends)
    return Ends(tuple(roots), tuple(knots))


class _Graph:
    """Adjacency lists. The first nodes are the ranks, the others are helpers.

    In a group of n members, up to n waiters wait for up to n members: n x n edges, far too many at 10,000 ranks. So
    each meeting adds one helper node per seq at which members have arrived. It leads to these members, and to the
    helper of the next lower seq. A waiter then needs one edge, to the highest helper below its own seq, and reaches all
    members that are behind it. The graph stays linear in the number of members.
    """

    def __init__(self, ranks: list[int], meetings: Iterable[Meeting], in_calls: Collection[int]) -> None:
        self._ranks = ranks
        self._in_calls = in_calls
        self._number = {rank: i for i, rank in enumerate(ranks)}
        self.edges: list[list[int]] = [[] for _ in ranks]
        self.strong_edges: list[list[int]] = [[] for _ in ranks]
        for meeting in meetings:
            if meeting.has_waits:
                self._add(meeting)

    def ranks_of(self, nodes: Iterable[int]) -> list[int]:
        """Return the ranks among ``nodes``."""
        return [self._ranks[node] for node in nodes if node < len(self._ranks)]

    def _add(self, meeting: Meeting) -> None:
        members_at: dict[int, list[int]] = {}
        for rank, seq in meeting.arrived.items():
            members_at.setdefault(seq, []).append(self._number[rank])
        seqs = sorted(members_at)
        below: list[int] = []  # the highest helper below the present waiter's seq, if any
        position = 0
        for waiter in reversed(meeting.waiters):  # by ascending seq, so that one pass over ``seqs`` serves all
            while position < len(seqs) and seqs[position] < waiter.enqueued:
                below = [self._new_node(members_at[seqs[position]] + below)]
                position += 1
            node = self._number[waiter.rank]
            self.edges[node] += below
            if meeting.strong or waiter.rank in self._in_calls:
                self.strong_edges[node] += below

    def _new_node(self, successors: list[int]) -> int:
        self.edges.append(successors)
        self.strong_edges.append(successors)
        return len(self.edges) - 1


def _circles(components: Iterable[list[int]]) -> list[list[int]]:
    return [component for component in components if len(component) > 1]


def _cycle(graph: _Graph, nodes: list[int], awaited: Awaited) -> tuple[int, ...]:
    """Return a shortest cycle through the most awaited rank of a knot.

    Where one rank calls in another order than all others, they all wait for it: it is the most awaited.
    """
    first = min(graph.ranks_of(nodes), key=lambda rank: (-awaited.direct_count(rank), rank))
    start = next(node for node in nodes if graph.ranks_of([node]) == [first])
    inside = set(nodes)
    circle = shortest_circle(start, lambda node: [to for to in graph.strong_edges[node] if to in inside])
    return tuple(graph.ranks_of(circle))  # without the helpers on the way
