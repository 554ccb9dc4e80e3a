"""Compares the speeds that the checks of nodes have measured: a node that is far slower than the others stands out.

A check has no limits of its own, because nobody knows what a machine should reach. The other nodes of the run show it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from statistics import median

from holdfast_core.model import CoreState
from holdfast_core.texts.nodes import slow_line
from holdfast_proto.v1 import store_pb2 as store

LEAST_OTHERS = 3
"""Least figures that one is compared with: of two, nobody knows which is wrong."""

SLOW_SHARES: Mapping[int, float] = {
    store.CHECK_KIND_DISK: 0.1,  # all nodes may write to one shared folder, and none gets the same share of it
    store.CHECK_KIND_SHM: 0.25,
    store.CHECK_KIND_LOOPBACK: 0.25,
    store.CHECK_KIND_NETWORK: 0.75,  # links have few speeds: a lower one is another one
    store.CHECK_KIND_CPU_GEMM: 0.5,
    store.CHECK_KIND_CPU_MEMORY: 0.5,
    store.CHECK_KIND_GPU_GEMM: 0.5,
    store.CHECK_KIND_GPU_MEMORY: 0.5,
}
"""What is measured -> share of the others' median below which a figure is slow."""


def checks_of(state: CoreState) -> dict[str, store.NodeCheck]:
    """Return the newest check of each node that has one, by name. Those from before a release do not count."""
    released = {one.node: one.released_unix_s for one in state.record.node_histories}
    return {
        name: node.check
        for name, node in state.nodes.items()
        if node.HasField("check") and node.check.ended_unix_s > released.get(name, 0.0)
    }


def common_failures(checks: Mapping[str, store.NodeCheck]) -> set[int]:
    """Return what fails on more than half of the nodes: a shared folder or a server, and no fault of a node."""
    if len(checks) < 2:
        return set()
    failed = Counter(kind for check in checks.values() for kind in {failure.kind for failure in check.failures})
    return {kind for kind, nodes in failed.items() if nodes > len(checks) / 2}


def slow_lines(checks: Mapping[str, store.NodeCheck]) -> dict[str, list[str]]:
    """Return what is slow on which node, as lines for people. ``checks``: node -> its newest check.

    A GPU is also compared with those of its own node.
    """
    by_kind: dict[int, list[tuple[str, store.CheckFigure]]] = defaultdict(list)
    for name, check in checks.items():
        for figure in check.figures:
            by_kind[figure.kind].append((name, figure))
    slow: dict[str, list[str]] = defaultdict(list)
    for kind, share in SLOW_SHARES.items():
        measured = by_kind[kind]
        if len(measured) <= LEAST_OTHERS:
            continue
        usual = median(figure.value for _, figure in measured)
        for name, figure in measured:
            if figure.value < share * usual:
                slow[name].append(slow_line(figure, usual))
    return dict(slow)
