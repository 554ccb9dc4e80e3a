"""The state from which a generation starts: the newest one that all ranks can have.

History comes before step: only the checkpoints of nodes that know the newest history count. A node that does not know
it yet would offer steps of a line of training that the run has left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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


def choose(
    nodes: Mapping[str, store.NodeState],
    world_size: int,
    unreadable: Iterable[int],
    now: float = 0.0,
    bad_from: int | None = None,
) -> RestorePoint | None:
    """Return the newest restore point: snapshots in the nodes' memory, else a checkpoint, else the seed.

    Of a snapshot and a checkpoint of the same step the snapshot is taken: it needs no unpacking. States from step
    ``bad_from`` on are taken only if there is no earlier one. None if there are checkpoints and none can be used: the
    seed is for runs that have none.
    """
    history = present_history(nodes)
    present = [node for node in nodes.values() if node.history == history]
    damaged = {step for node in present for step in node.damaged_checkpoints}
    there = {step for node in present for step in node.checkpoints} | damaged
    whole = there - damaged - set(unreadable)
    in_memory, on_disk = newest_common_snapshot(nodes, world_size), max(whole, default=-1)
    if bad_from is not None:
        good_in_memory = newest_common_snapshot(nodes, world_size, bad_from)
        good_on_disk = max((step for step in whole if step < bad_from), default=-1)
        if max(good_in_memory, good_on_disk) >= 0:
            in_memory, on_disk = good_in_memory, good_on_disk
    step = max(in_memory, on_disk)
    if step < 0:
        return None if there else RestorePoint(store.SOURCE_SEED, -1)
    begun = None
    if any(newer > step for newer in there):
        begun = store.History(number=max(history, 1) + 1, parent=max(history, 1), parent_step=step, since_unix_s=now)
    source = store.SOURCE_MEMORY if in_memory >= on_disk else store.SOURCE_CHECKPOINT
    passed_over = frozenset(newer for newer in there & {*damaged, *unreadable} if newer > step)
    return RestorePoint(source, step, begun, passed_over)


def present_history(nodes: Mapping[str, store.NodeState]) -> int:
    """Return the number of the newest history that a node knows."""
    return max((node.history for node in nodes.values()), default=0)


def newest_common_snapshot(
    nodes: Mapping[str, store.NodeState], world_size: int, before_step: int | None = None
) -> int:
    """Return the newest step, before ``before_step``, of which every rank has a complete snapshot in memory, or -1."""
    held = {rank.rank: set(rank.snapshots) for node in nodes.values() for rank in node.ranks}
    if len(held) < world_size:
        return -1
    common = set.intersection(*held.values())
    return max((step for step in common if before_step is None or step < before_step), default=-1)
