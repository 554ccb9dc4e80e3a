"""Draws which rank waits for which, as a tree. Ranks that wait for none are its roots."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from rich.text import Text
from rich.tree import Tree

from holdfast_core.naming import ranks_named
from holdfast_proto.v1.store_pb2 import WaitEdge


def wait_trees(edges: Collection[WaitEdge]) -> list[Tree]:
    """Return a tree for each awaited rank that waits for none; a cycle has one tree, for its first rank."""
    waiters: dict[int, list[WaitEdge]] = defaultdict(list)
    for edge in edges:
        waiters[edge.awaited].append(edge)
    waiting = {edge.waiter for edge in edges}
    roots = sorted(waiters.keys() - waiting) or sorted(waiters)[:1]
    return [_tree(root, waiters) for root in roots]


def _tree(root: int, waiters: dict[int, list[WaitEdge]]) -> Tree:
    top = Tree(f"rank {root}")
    shown = {root}
    level = [(top, [root])]
    for branch, awaited in level:
        for edges in _by_call(edge for rank in awaited for edge in waiters.get(rank, [])):
            ranks, first = {edge.waiter for edge in edges}, edges[0]
            again = shown.issuperset(ranks)
            who = ranks_named(sorted(ranks), max(edge.waiters for edge in edges))
            # As a text: rich reads strings as markup, and the name of a group comes from the run.
            line = f"{who} in {first.op} {first.seq} of {first.group}"
            below = branch.add(Text(line + (" (above)" if again else "")))
            if not again:
                level.append((below, sorted(ranks - shown)))
            shown |= ranks
    return top


def _by_call(edges: Iterable[WaitEdge]) -> Collection[list[WaitEdge]]:
    """Return the waits in each call. Evidence may have named the call of some of its ranks only."""
    calls: dict[tuple[str, int], list[WaitEdge]] = defaultdict(list)
    for edge in edges:
        calls[edge.group, edge.seq].append(edge)
    return calls.values()
