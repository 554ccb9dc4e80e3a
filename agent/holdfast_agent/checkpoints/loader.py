"""Brings a checkpoint to the ranks of this node: into snapshot memory, or by its name if their world is another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint.format.manifest import Manifest, load_committed_index, load_manifest
from holdfast_checkpoint.format.shard_index import shard_path, slot_bytes_needed
from holdfast_checkpoint.format.shard_reader import verify_shard
from holdfast_proto.snapshot import SnapshotError


@dataclass(frozen=True)
class StartingPoint:
    """What the ranks of a generation start from; with neither, the seed."""

    slots: Mapping[int, Path] = field(default_factory=dict)
    """Rank -> the slot with its state."""
    checkpoint: Path | None = None
    """The checkpoint that ranks load themselves from where ``slots`` do not fit their layout."""


def slot_for(directory: Path, rank: int, memory: SnapshotMemory, *, ranks_on_node: int) -> Path:
    """Return a slot for the state of ``rank`` in a checkpoint's directory.

    No rank is alive meanwhile. Raises CheckpointUnreadable, or SnapshotError if no slot could be had.
    """
    index = load_committed_index(directory, load_manifest(directory), rank)
    grant = memory.grant(rank, slot_bytes_needed(index), ranks_on_node)
    if not grant.paths:
        raise SnapshotError(f"rank {rank} has no slot to restore into: {grant.reason}")
    return grant.paths[0]


def verify_share(directory: Path, manifest: Manifest, ranks: Sequence[int], world_size: int) -> None:
    """Read the shards that fall to ``ranks`` of a world of another size than the one that wrote the checkpoint.

    Every shard falls to one rank of the world, so that the nodes together verify them all before ranks load
    what they need. Raises CheckpointUnreadable.
    """
    for saved_rank in range(manifest.world_size):
        if saved_rank % world_size in ranks:
            index = load_committed_index(directory, manifest, saved_rank)
            verify_shard(shard_path(directory, saved_rank), index)
