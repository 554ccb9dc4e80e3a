"""Loads a checkpoint into a new process group and compares every tensor with the manifest."""

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, empty
from torch.multiprocessing.spawn import ProcessException, start_processes

from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable
from holdfast_checkpoint.format.manifest import load_committed_indexes
from holdfast_checkpoint.format.sealed_json import digest_of
from holdfast_checkpoint.format.shard_index import ShardIndex
from holdfast_cli.errors import CommandError
from holdfast_hooks.restore.dcp.dcp_reader import SavedStateReader
from holdfast_hooks.restore.saved_state import Chunk, SavedState, SavedTensor

Part = tuple[str, tuple[int, ...]]
"""Key of a tensor, and where in it a stored part starts."""


@dataclass(frozen=True)
class DrillResult:
    """Result of a drill."""

    ranks: int
    load_s: float
    """Seconds of the slowest rank, from the first read to the last tensor in its place."""
    loaded_bytes: int
    differences: list[str]
    """One line for each part that did not arrive as it was saved; empty: all did."""


def drill(directory: Path, ranks: int) -> DrillResult:
    """Load the checkpoint in ``directory`` into ``ranks`` new processes, over gloo.

    Every tensor is spread over the processes along its first dim, and put together again to be digested.
    Raises CheckpointUnreadable, SettingsError if parts make no whole, CommandError if a process fails.
    """
    _, indexes = load_committed_indexes(directory)
    for tensor in whole_tensors(directory).values():
        tensor.check()
    with tempfile.TemporaryDirectory(prefix="holdfast-drill-") as folder:
        try:
            start_processes(  # type: ignore[no-untyped-call]
                _rank, (ranks, str(directory), folder), ranks, start_method="fork"
            )
        except ProcessException as error:
            last = str(error).strip().splitlines()[-1]
            raise CommandError(f"the drill failed: {last}: try it with fewer --ranks") from None
        reports = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank-*.json"))]
    for report in reports:
        if report["problem"]:
            raise CheckpointUnreadable(report["problem"])
    found = {(key, tuple(start)): digest for report in reports for key, start, digest in report["digests"]}
    return DrillResult(
        ranks=ranks,
        load_s=max(report["load_s"] for report in reports),
        loaded_bytes=sum(report["loaded_bytes"] for report in reports),
        differences=list(differences(indexes, found)),
    )


def whole_tensors(directory: Path) -> dict[str, SavedTensor]:
    """Return every tensor of a checkpoint under a key of its own; those without elements are left out.

    What ranks have for themselves is as many tensors as ranks have it. Raises CheckpointUnreadable.
    """
    _, indexes = load_committed_indexes(directory)
    saved = SavedState.open(directory, 0)
    found = {name: tensor for name, tensor in saved.tensors.items() if tensor.is_spread and tensor.chunks}
    for index in indexes:
        for stored in index.tensors:
            entry = stored.entry
            if stored.is_stored and entry.writer is None and entry.nbytes:
                chunks = {entry.global_offset: Chunk(index.rank, stored)}
                key = _key(index.rank, entry.name, is_own=True)
                found[key] = SavedTensor(entry.name, entry.dtype, entry.global_shape, False, chunks)
    return found


def _key(rank: int, name: str, *, is_own: bool) -> str:
    return f"{name} of rank {rank}" if is_own else name


def differences(indexes: Iterable[ShardIndex], found: Mapping[Part, str]) -> Iterator[str]:
    """Yield a line for each stored part whose digest is not ``found``."""
    for index in indexes:
        for stored in index.tensors:
            entry = stored.entry
            if not (stored.is_stored and entry.nbytes):
                continue
            part = _key(index.rank, entry.name, is_own=entry.writer is None), entry.global_offset
            if part not in found:
                yield f"rank {index.rank} tensor {entry.name}: was not loaded"
            elif found[part] != stored.digest:
                yield f"rank {index.rank} tensor {entry.name}: arrived with other values than were saved"


def _rank(rank: int, ranks: int, directory: str, folder: str) -> None:
    """Run as one process of the group, and write a report to ``folder``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    report = _load_and_digest(Path(directory), rank, ranks)
    (Path(folder) / f"rank-{rank:05}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


def _load_and_digest(directory: Path, rank: int, ranks: int) -> dict[str, Any]:
    saved = whole_tensors(directory)
    mesh = init_device_mesh("cpu", (ranks,))
    targets = {key: _spread(tensor, mesh) for key, tensor in saved.items()}
    dist.barrier()
    began_s = time.monotonic()
    try:
        load(
            targets,
            storage_reader=SavedStateReader(directory, saved),
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        )
    except CheckpointException as error:  # raised on all ranks
        first, _ = next(iter(error.failures.values()))
        return {"problem": str(first)}
    load_s = time.monotonic() - began_s
    locals_ = {key: _local(target) for key, target in targets.items()}
    digests = []
    for number, (key, tensor) in enumerate(saved.items()):
        keeper = number % ranks
        whole = _gather(locals_[key], tensor, keeper, rank, ranks)
        if whole is not None:
            digests += [(key, start, _digest(whole, chunk)) for start, chunk in tensor.chunks.items()]
    loaded_bytes = sum(local.nbytes for local in locals_.values())
    return {"problem": "", "load_s": load_s, "loaded_bytes": loaded_bytes, "digests": digests}


def _spread(tensor: SavedTensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return memory for this rank's part of a tensor."""
    dtype = getattr(torch, tensor.dtype)
    if not tensor.global_shape:
        return torch.empty((), dtype=dtype)
    return empty(*tensor.global_shape, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])


def _local(target: torch.Tensor) -> torch.Tensor:
    return target.to_local() if isinstance(target, DTensor) else target


def _gather(local: torch.Tensor, tensor: SavedTensor, keeper: int, rank: int, ranks: int) -> torch.Tensor | None:
    """Put a tensor together on rank ``keeper``; None on the others.

    In bytes, because gloo does not know every dtype.
    """
    if not tensor.global_shape:
        return local if rank == keeper else None
    if rank != keeper:
        if local.numel():
            dist.send(local.contiguous().view(torch.uint8).flatten(), keeper)
        return None
    whole = torch.empty(tensor.global_shape, dtype=local.dtype)
    for source, part in enumerate(whole.chunk(ranks)):
        if source == rank:
            part.copy_(local)
        else:
            dist.recv(part.view(torch.uint8).view(-1), source)
    return whole


def _digest(whole: torch.Tensor, chunk: Chunk) -> str:
    """Return the digest of the region of ``whole`` that was stored as ``chunk``."""
    entry = chunk.stored.entry
    region = whole
    for dim, (start, length) in enumerate(zip(entry.global_offset, entry.shape, strict=True)):
        region = region.narrow(dim, start, length)
    return digest_of(region.contiguous().flatten().view(torch.uint8).numpy().data)
