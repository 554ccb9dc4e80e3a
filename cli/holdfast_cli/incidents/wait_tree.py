"""Draws which rank waits for which, as a tree. Ranks that wait for none are its roots."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from rich.text import Text
from rich.tree import Tree

from holdfast_proto.v1.store_pb2 import WaitEdge

_RANKS_SHOWN = 8


def wait_trees(edges: Collection[WaitEdge]) -> list[Tree]:
    """Return a tree for each awaited rank that waits for none; a cycle has one tree, for its first rank."""
    waiters: dict[int, list[WaitEdge]] = defaultdict(list)
    for edge in edges:
        waiters[edge.awaited].append(edge)
    waiting = {edge.waiter for edge in edges}
    roots = sorted(waiters.keys() - waiting) or sorted(waiters)[:1]
    return [_tree(root, waiters) for root in roots]


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``rank 3``, ``ranks 1, 2`` or, of many, the first ones and how many more."""
    numbers = sorted(set(ranks))
    shown = ", ".join(map(str, numbers[:_RANKS_SHOWN]))
    more = f" and {len(numbers) - _RANKS_SHOWN} more" if len(numbers) > _RANKS_SHOWN else ""
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _tree(root: int, waiters: dict[int, list[WaitEdge]]) -> Tree:
    top = Tree(f"rank {root}")
    shown = {root}
    level = [(top, [root])]
    for branch, awaited in level:
        for call, ranks in _by_call(edge for rank in awaited for edge in waiters.get(rank, [])).items():
            again = shown.issuperset(ranks)
            # As a text: rich reads strings as markup, and the name of a group comes from the run.
            below = branch.add(Text(f"{ranks_text(ranks)} in {call}" + (" (above)" if again else "")))
            if not again:
                level.append((below, sorted(ranks - shown)))
            shown |= ranks
    return top


def _by_call(edges: Iterable[WaitEdge]) -> dict[str, set[int]]:
    """Return the ranks that wait in each call."""
    calls: dict[str, set[int]] = defaultdict(set)
    for edge in edges:
        calls[f"{edge.op} {edge.seq} of {edge.group}"].add(edge.waiter)
    return calls
