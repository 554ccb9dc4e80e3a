"""Compares two checkpoints bit by bit."""

import json
from pathlib import Path

from holdfast_checkpoint.format.manifest import load_committed_indexes
from holdfast_checkpoint.format.shard_index import ShardIndex, StoredTensor, shard_path
from holdfast_checkpoint.format.shard_reader import verify_shard
from holdfast_proto.snapshot import StateTree


def state_differences(a: Path, b: Path) -> list[str]:
    """Return one line per difference between the states in two checkpoints' directories; none: bit-identical.

    It verifies the shards of both first, and then compares the trees and the digests of all tensors of all ranks. Run,
    step and generation are not part of the state. Raises CheckpointUnreadable or CheckpointUnavailable if a checkpoint
    does not read back.
    """
    (manifest_a, indexes_a), (manifest_b, indexes_b) = load_committed_indexes(a), load_committed_indexes(b)
    if manifest_a.world_size != manifest_b.world_size:
        return [f"world size: {manifest_a.world_size} and {manifest_b.world_size}"]
    lines = []
    for rank, (index_a, index_b) in enumerate(zip(indexes_a, indexes_b, strict=True)):
        verify_shard(shard_path(a, rank), index_a)
        verify_shard(shard_path(b, rank), index_b)
        if _canonical(index_a.tree) != _canonical(index_b.tree):
            lines.append(f"rank {rank}: the trees differ")
        lines += _tensor_differences(rank, index_a, index_b)
    return lines


def _canonical(tree: StateTree) -> str:
    # As text, because to Python 1, 1.0 and True are equal and NaN is not.
    return json.dumps(tree, sort_keys=True)


def _tensor_differences(rank: int, a: ShardIndex, b: ShardIndex) -> list[str]:
    names_a, names_b = ([tensor.entry.name for tensor in index.tensors] for index in (a, b))
    if names_a != names_b:
        only = sorted(set(names_a) ^ set(names_b))
        return [f"rank {rank}: the tensors are others or in another order: {', '.join(only) or 'same names'}"]
    lines = []
    for tensor_a, tensor_b in zip(a.tensors, b.tensors, strict=True):
        if _placement(tensor_a) != _placement(tensor_b):
            lines.append(f"rank {rank} tensor {tensor_a.entry.name}: type or shape differ")
        elif tensor_a.digest != tensor_b.digest:
            lines.append(f"rank {rank} tensor {tensor_a.entry.name}: values differ")
    return lines


def _placement(tensor: StoredTensor) -> tuple[object, ...]:
    entry = tensor.entry
    return (entry.dtype, entry.shape, entry.global_shape, entry.global_offset, entry.writer)
