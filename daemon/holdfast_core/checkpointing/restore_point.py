"""The state from which a generation starts: the newest one that all ranks can have.

History comes before step: only the checkpoints of nodes that know the newest history count. A node that does not know
it yet would offer steps of a line of training that the run has left.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class RestorePoint:
    """A state to start from. ``step`` is the last one that is not repeated; -1: the run starts from the seed."""

    source: "store.Source"
    step: int
    history: store.History | None = None
    """History that begins here, because newer checkpoints of the present one are undone; None: that one continues."""
    passed_over: frozenset[int] = frozenset()
    """Steps of newer checkpoints that are damaged or unreadable."""
    replica_generation: int = 0
    """With SOURCE_REPLICA: generation in which the snapshots were taken."""


def choose(
    nodes: Mapping[str, store.NodeState],
    world_size: int,
    unreadable: Iterable[int],
    now: float = 0.0,
    bad_from: int | None = None,
    *,
    replicas: Collection[tuple[int, int]] = (),
    is_strict: bool = False,
    is_in_memory: bool = True,
) -> RestorePoint | None:
    """Return the newest restore point: snapshots in memory, replica snapshots, a checkpoint, else the seed.

    Of one step, a snapshot in memory comes first, because it needs no unpacking; then a replica snapshot, because
    every node has most of it. States from step ``bad_from`` on are taken only if there is no earlier one; if the choice
    ``is_strict``, never. None if there are checkpoints and none can be used: the seed is for runs that have none.

    ``replicas``: step and generation of the sets of replica snapshots that can be used. ``is_in_memory``: whether
    snapshots in memory can be.
    """

    def in_memory(before: int | None) -> int:
        return newest_common_snapshot(nodes, world_size, before) if is_in_memory else -1

    history = present_history(nodes)
    present = [node for node in nodes.values() if node.history == history]
    damaged = {step for node in present for step in node.damaged_checkpoints}
    there = {step for node in present for step in node.checkpoints} | damaged
    whole = there - damaged - set(unreadable)
    found = _newest(in_memory(None), replicas, whole)
    if bad_from is not None:
        good_replicas = {one for one in replicas if one[0] < bad_from}
        good = _newest(in_memory(bad_from), good_replicas, {step for step in whole if step < bad_from})
        found = good if is_strict or good.step >= 0 else found
    step = found.step
    if step < 0:
        return None if there else RestorePoint(store.SOURCE_SEED, -1)
    begun = None
    if any(newer > step for newer in there):
        begun = store.History(number=max(history, 1) + 1, parent=max(history, 1), parent_step=step, since_unix_s=now)
    passed_over = frozenset(newer for newer in there & {*damaged, *unreadable} if newer > step)
    return replace(found, history=begun, passed_over=passed_over)


def _newest(in_memory: int, replicas: Iterable[tuple[int, int]], checkpoints: Iterable[int]) -> RestorePoint:
    """Return the newest state of all kinds; its step is -1 if there is none. ``in_memory``: that of the snapshots."""
    replica_step, replica_generation = max(replicas, default=(-1, 0))
    # Of equal steps, max() takes the first.
    kinds = (
        RestorePoint(store.SOURCE_MEMORY, in_memory),
        RestorePoint(store.SOURCE_REPLICA, replica_step, replica_generation=replica_generation),
        RestorePoint(store.SOURCE_CHECKPOINT, max(checkpoints, default=-1)),
    )
    return max(kinds, key=lambda point: point.step)


def present_history(nodes: Mapping[str, store.NodeState]) -> int:
    """Return the number of the newest history that a node knows."""
    return max((node.history for node in nodes.values()), default=0)


def newest_common_snapshot(
    nodes: Mapping[str, store.NodeState], world_size: int, before_step: int | None = None
) -> int:
    """Return the newest step, before ``before_step``, of which every rank has a complete snapshot in memory, or -1."""
    # Without the last ranks of a world that has just grown, it was the world before.
    of_world = (rank for node in nodes.values() for rank in node.ranks if rank.rank < world_size)
    held = {rank.rank: set(rank.snapshots) for rank in of_world}
    if len(held) < world_size:
        return -1
    common = set.intersection(*held.values())
    return max((step for step in common if before_step is None or step < before_step), default=-1)


def complete_replicas(
    nodes: Mapping[str, store.NodeState], world_size: int, *, copies: int = 1
) -> frozenset[tuple[int, int]]:
    """Return step and generation of all sets of replica snapshots of which each rank's is on ``copies`` nodes.

    Those of worlds of another size do not count.

    Snapshots of one step that two generations have taken do not belong together.
    """
    held: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for node in nodes.values():
        here: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for one in node.replicas.held:
            if one.world_size == world_size:
                here[one.step, one.generation].update(one.ranks)
        for known, ranks in here.items():
            held[known].update(ranks)
    return frozenset(
        known for known, holders in held.items() if all(holders[rank] >= copies for rank in range(world_size))
    )
