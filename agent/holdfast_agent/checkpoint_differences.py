"""Compares two checkpoints bit by bit."""

import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

from holdfast_agent.manifest import load_committed_index, load_manifest
from holdfast_agent.shard_index import ShardIndex, StoredTensor, shard_path
from holdfast_agent.shard_reader import ShardReader


def differences(a: Path, b: Path) -> list[str]:
    """Return one line per difference between the states in two checkpoints' directories.

    Compared are the trees and the raw bytes of all tensors of all ranks; run, step and generation are not
    part of the state. Empty: bit-identical. Raises CheckpointUnreadable if either does not read back.
    """
    manifest_a, manifest_b = load_manifest(a), load_manifest(b)
    if manifest_a.world_size != manifest_b.world_size:
        return [f"world size: {manifest_a.world_size} and {manifest_b.world_size}"]
    lines = []
    for rank in range(manifest_a.world_size):
        index_a = load_committed_index(a, manifest_a, rank)
        index_b = load_committed_index(b, manifest_b, rank)
        if _canonical(index_a.tree) != _canonical(index_b.tree):
            lines.append(f"rank {rank}: the trees differ")
        lines += _tensor_differences(rank, shard_path(a, rank), index_a, shard_path(b, rank), index_b)
    return lines


def _canonical(tree: Any) -> str:
    # As text, because to Python 1, 1.0 and True are equal and NaN is not.
    return json.dumps(tree, sort_keys=True)


def _tensor_differences(rank: int, path_a: Path, a: ShardIndex, path_b: Path, b: ShardIndex) -> list[str]:
    names_a, names_b = ([tensor.entry.name for tensor in index.tensors] for index in (a, b))
    if names_a != names_b:
        only = sorted(set(names_a) ^ set(names_b))
        return [f"rank {rank}: the tensors are others or in another order: {', '.join(only) or 'same names'}"]
    lines = []
    with ShardReader(path_a, a) as reader_a, ShardReader(path_b, b) as reader_b:
        for tensor_a, tensor_b in zip(a.tensors, b.tensors, strict=True):
            same = True
            for part_a, part_b in zip_longest(reader_a.chunks(tensor_a), reader_b.chunks(tensor_b)):
                same &= part_a == part_b
            if _placement(tensor_a) != _placement(tensor_b):
                lines.append(f"rank {rank} tensor {tensor_a.entry.name}: type or shape differ")
            elif not same:
                lines.append(f"rank {rank} tensor {tensor_a.entry.name}: values differ")
        reader_a.finish()
        reader_b.finish()
    return lines


def _placement(tensor: StoredTensor) -> tuple[object, ...]:
    entry = tensor.entry
    return (entry.dtype, entry.shape, entry.global_shape, entry.global_offset)
