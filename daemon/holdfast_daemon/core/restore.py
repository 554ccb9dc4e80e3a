"""From where a generation starts: the newest state that all ranks can have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class RestorePoint:
    """``step`` is the last one that is not repeated; -1 from the seed."""

    source: "store.Source"
    step: int


def choose(nodes: Mapping[str, store.NodeState], world_size: int, unreadable: Iterable[int]) -> RestorePoint:
    """Return the newest restore point: snapshots in the nodes' memory, else a checkpoint, else the seed.

    Of a snapshot and a checkpoint of the same step the snapshot is taken: it needs no unpacking.
    """
    in_memory = newest_common_snapshot(nodes, world_size)
    on_disk = max({step for node in nodes.values() for step in node.checkpoints} - set(unreadable), default=-1)
    if in_memory < 0 and on_disk < 0:
        return RestorePoint(store.SOURCE_SEED, -1)
    if in_memory >= on_disk:
        return RestorePoint(store.SOURCE_MEMORY, in_memory)
    return RestorePoint(store.SOURCE_CHECKPOINT, on_disk)


def newest_common_snapshot(nodes: Mapping[str, store.NodeState], world_size: int) -> int:
    """Return the newest step of which every rank has a complete snapshot in memory, or -1."""
    held = {rank.rank: set(rank.snapshots) for node in nodes.values() for rank in node.ranks}
    if len(held) < world_size:
        return -1
    return max(set.intersection(*held.values()), default=-1)
