"""Whose evidence is gathered: that of all ranks in a small run, and of some of them in a large one.

Files and stacks of thousands of ranks take minutes to write and tell little that those of a few do not. So a large run
writes them for the ranks that a verdict is about, and for some to compare them with.

The recorders of calls on devices are an exception. A hang is judged by those of all ranks (``diagnosis/devices/``), so
every agent still reads them. But it sends them shortened, and keeps files of the chosen ranks alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

from holdfast_core.detectors.view import View
from holdfast_core.evidence import held_ranks
from holdfast_core.world import is_stopped
from holdfast_proto.v1 import store_pb2 as store

MOST_CHOSEN = 64
"""Most ranks whose files are written. A run of that many ranks has the files of all."""

_CULPRITS, _WAITING, _ENDED = 24, 12, 12
"""Most of each kind. Ranks whose stacks are taken come before them; healthy ranks have the rest."""

_REPLICA = "dp"
"""Coordinate of a rank's replica. All replicas do the same."""


def chosen_ranks(verdict: store.Verdict, view: View, first: Iterable[int] = ()) -> list[int]:
    """Return the ranks whose files are written, ascending; []: those of all ranks, because the run is small.

    They are added in this order, until there are :data:`MOST_CHOSEN`:

    1. ``first``: ranks whose stacks are taken;
    2. the culprits of the verdict, 24 at most;
    3. ranks that wait, 12 at most: one of each call or side that the verdict names, then others, spread over nodes;
    4. ranks that have ended or are stopped, 12 at most, spread over nodes;
    5. healthy ranks: one for each index of each coordinate but ``dp``, such as one for each pipeline stage.
    """
    if view.world_size <= MOST_CHOSEN:
        return []
    named = _named(verdict)
    chosen: dict[int, None] = dict.fromkeys(first)
    _add(chosen, verdict.culprits, _CULPRITS)
    others = spread_over_nodes(chain.from_iterable(named), view.node_of)
    _add(chosen, [*(one[0] for one in named), *others], _WAITING)
    gone = (number for number, rank in sorted(view.ranks.items()) if rank.life == store.LIFE_EXITED or is_stopped(rank))
    _add(chosen, spread_over_nodes((rank for rank in gone if rank not in chosen), view.node_of), _ENDED)
    _add(chosen, _one_of_each(view, but=frozenset(verdict.culprits)), MOST_CHOSEN)
    return sorted(islice(chosen, MOST_CHOSEN))


def nodes_to_ask(nodes: Iterable[str], view: View, chosen: Iterable[int], *, recorders: bool) -> list[str]:
    """Return those of ``nodes`` that are to gather: the ones of the chosen ranks, and all if no rank was chosen.

    ``recorders``: whether recorders are wanted too. Those on devices are wanted of all nodes.
    """
    here = {view.node_of[rank] for rank in chosen if rank in view.node_of}
    every = list(nodes)
    if recorders and view.uses_devices:
        return every
    return [name for name in every if name in here] or every


def spread_over_nodes(ranks: Iterable[int], node_of: Mapping[int, str]) -> list[int]:
    """Return ``ranks`` with one of each node in front.

    If nodes do not reach each other, only evidence of several of them shows it.
    """
    of_node: Counter[str] = Counter()
    place = {}
    for rank in ranks:
        if rank not in place:
            node = node_of.get(rank, "")
            place[rank] = of_node[node]
            of_node[node] += 1
    return sorted(place, key=lambda rank: place[rank])


def _add(chosen: dict[int, None], ranks: Iterable[int], most: int) -> None:
    """Add up to ``most`` ranks to those that are chosen already."""
    chosen.update(dict.fromkeys(islice((rank for rank in dict.fromkeys(ranks) if rank not in chosen), most)))


def _named(verdict: store.Verdict) -> list[list[int]]:
    """Return the ranks of each call or side that a verdict names: only a rank that is in a call can name it."""
    calls: dict[tuple[str, int], list[int]] = {}
    for edge in verdict.waits:
        calls.setdefault((edge.group, edge.seq), []).append(edge.waiter)
    sides = (list(side.ranks) for side in verdict.mismatch.sides)
    on_devices = (list(verdict.device_call.ranks), list(verdict.device_call.suspects))
    # The waits of a call are those of a few ranks, which may all be on one node.
    waiters = (list(held.waiters) for held in islice(held_ranks(verdict), _CULPRITS))
    return [ranks for ranks in (*calls.values(), *sides, *on_devices, *waiters) if ranks]


def _one_of_each(view: View, but: frozenset[int]) -> Iterator[int]:
    """Yield running ranks, each of which shows an index of a coordinate that none before it shows."""
    seen: set[tuple[str, int]] = set()
    for number, rank in sorted(view.ranks.items()):
        if number in but or rank.life == store.LIFE_EXITED or is_stopped(rank):
            continue
        shows = {(axis, index) for axis, index in rank.coordinates.items() if axis != _REPLICA} or {("", 0)}
        if not shows <= seen:
            seen |= shows
            yield number
