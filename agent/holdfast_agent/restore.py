"""Brings a rank's part of a checkpoint back into snapshot memory, from where the rank restores."""

from pathlib import Path

from holdfast_agent.manifest import load_committed_index, load_manifest
from holdfast_agent.shard import read_shard
from holdfast_agent.shard_index import slot_bytes_needed
from holdfast_agent.snapshot_memory import SnapshotMemory
from holdfast_proto.snapshot import SnapshotError


def restore(directory: Path, rank: int, memory: SnapshotMemory, *, generation: int, ranks_on_node: int) -> Path:
    """Verify the shard of ``rank`` in a checkpoint's directory, unpack it into a slot, and return that slot.

    No rank is alive meanwhile. Raises CheckpointUnreadable, or SnapshotError if no slot could be had.
    """
    index = load_committed_index(directory, load_manifest(directory), rank)
    grant = memory.grant(rank, slot_bytes_needed(index), ranks_on_node)
    if not grant.paths:
        raise SnapshotError(f"rank {rank} has no slot to restore into: {grant.reason}")
    read_shard(directory, rank, grant.paths[0], generation=generation)
    return grant.paths[0]
