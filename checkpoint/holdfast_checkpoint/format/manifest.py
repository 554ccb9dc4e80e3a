"""The manifest: the file whose presence makes a set of shards a checkpoint.

It is written last and removed first. So a crash leaves shards without a manifest, which no start uses, but never a
manifest without its shards.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.files import read_regular
from holdfast_checkpoint.checkpoint_errors import (
    CheckpointCommitted,
    CheckpointError,
    CheckpointUnavailable,
    CheckpointUnreadable,
    read_errors,
)
from holdfast_checkpoint.format.durable import flush_directory, remove_file, write_file
from holdfast_checkpoint.format.sealed_json import SealError, new_digest, seal, unseal_format
from holdfast_checkpoint.format.shard_index import FORMAT, ShardIndex, index_path, load_index
from holdfast_proto.limits import is_count, is_unix_time

MANIFEST = "manifest.json"
_MOST_BYTES = 256 << 20
"""A rank takes some 100 bytes, and a world has up to 2**20 ranks."""
_FIX = "restore it from a copy, or remove its folder"


@dataclass(frozen=True, kw_only=True)
class ManifestShard:
    """One rank's files, as the manifest vouches for them."""

    rank: int
    index_digest: str
    """Digest of the index, which has the digests of all tensors."""
    shard_bytes: int
    """Bytes of the shard file: a shard that was cut off is found without reading it."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A committed checkpoint."""

    run: str
    """Name of the run."""
    step: int
    """Step at whose end the snapshots were taken."""
    world_size: int
    generation: int
    """Generation in which the snapshots were taken, on all ranks."""
    committed_unix_s: float
    """Unix time of the commit."""
    raw_bytes: int
    """Bytes of all stored tensors before compression."""
    stored_bytes: int
    """Bytes of all shard files."""
    content_digest: str
    """Digest over all tensors of all ranks: equal digests mean equal tensors."""
    stale: bool
    """Whether no tensor differs from the checkpoint before, though the step does: the save saw old data."""
    shards: tuple[ManifestShard, ...]
    """Entries of all ranks, ascending."""
    bases: tuple[int, ...]
    """Steps of the checkpoints that are needed to read this one, ascending; none: it is a full one."""
    since_full: int
    """Number of checkpoints since the last full one; 0 for a full one."""

    def encode(self) -> bytes:
        """Return the manifest file."""
        return seal({"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """Invert :meth:`encode`. Raises SealError if a byte differs, ValueError for another format or odd values."""
        body = unseal_format(data, FORMAT)
        try:
            shards = tuple(ManifestShard(**shard) for shard in body["shards"])
            manifest = cls(**{**body, "shards": shards, "bases": tuple(body["bases"])})
        except (LookupError, TypeError) as error:
            raise ValueError(f"it has other fields: {error}") from None
        manifest._check()
        return manifest

    def _check(self) -> None:
        """Raise ValueError unless it is one that :func:`describe` can have made: its digest proves no more than that.

        A base that is not earlier would never come to an end.
        """
        numbers = (self.step, self.generation, self.raw_bytes, self.stored_bytes, self.since_full, *self.bases)
        if not all(map(is_count, (*numbers, *(one.shard_bytes for one in self.shards)))):
            raise ValueError("a number of it is none")
        if [one.rank for one in self.shards] != list(range(len(self.shards))) or len(self.shards) != self.world_size:
            raise ValueError("it does not name each rank once")
        if not all(base < self.step for base in self.bases):
            raise ValueError("it builds on a checkpoint that is not earlier")
        texts = (self.run, self.content_digest, *(one.index_digest for one in self.shards))
        if not all(isinstance(text, str) for text in texts) or not is_unix_time(self.committed_unix_s):
            raise ValueError("a text or a time of it is none")


def load_manifest(directory: Path) -> Manifest:
    """Read the manifest of the checkpoint in ``directory``.

    Raises CheckpointUnreadable if it is damaged, CheckpointUnavailable if it is missing or cannot be read.
    """
    path = directory / MANIFEST
    try:
        with read_errors(path):
            data = read_regular(path, _MOST_BYTES)
        return Manifest.decode(data)
    except CheckpointUnreadable as error:
        raise CheckpointUnreadable(f"{error}: {_FIX}") from error
    except SealError as error:
        raise CheckpointUnreadable(f"{path} {error}: {_FIX}") from error
    except ValueError as error:
        raise CheckpointUnreadable(f"{path} is not a manifest of this version: {error}: {_FIX}") from error


def load_committed_index(directory: Path, manifest: Manifest, rank: int) -> ShardIndex:
    """Read the index of ``rank``.

    Raises CheckpointUnreadable if it is damaged or not the one that was committed, CheckpointUnavailable if it cannot
    be read.
    """
    if rank >= manifest.world_size:
        raise CheckpointUnreadable(
            f"{directory} has no shard of rank {rank}: its world has {manifest.world_size} ranks"
        )
    index = load_index(directory, rank)
    if index.digest != manifest.shards[rank].index_digest:
        raise CheckpointUnreadable(f"{directory}: the index of rank {rank} is not the one that was committed")
    return index


def load_committed_indexes(directory: Path) -> tuple[Manifest, list[ShardIndex]]:
    """Read the manifest and the indexes of all ranks. Raises CheckpointUnreadable and CheckpointUnavailable."""
    manifest = load_manifest(directory)
    return manifest, [load_committed_index(directory, manifest, rank) for rank in range(manifest.world_size)]


def describe(indexes: Sequence[ShardIndex], *, previous: Manifest | None = None) -> Manifest:
    """Return the manifest of a complete set of shards, committed now; ``previous`` is the checkpoint before it."""
    first = indexes[0]
    digest = content_digest(indexes)
    bases = sorted({index.base.step for index in indexes if index.base is not None})
    has_tensors = any(index.tensors for index in indexes)
    return Manifest(
        run=first.run,
        step=first.step,
        world_size=first.world_size,
        generation=first.generation,
        committed_unix_s=time.time(),
        raw_bytes=sum(index.raw_bytes for index in indexes),
        stored_bytes=sum(index.shard_bytes for index in indexes),
        content_digest=digest,
        stale=has_tensors and previous is not None and previous.content_digest == digest,
        shards=manifest_shards(indexes),
        bases=tuple(bases),
        since_full=1 + (previous.since_full if previous else 0) if bases else 0,
    )


def manifest_shards(indexes: Sequence[ShardIndex]) -> tuple[ManifestShard, ...]:
    """Return a manifest's entries for these shards."""
    return tuple(
        ManifestShard(rank=index.rank, index_digest=index.digest, shard_bytes=index.shard_bytes) for index in indexes
    )


def content_digest(indexes: Sequence[ShardIndex]) -> str:
    """Return a digest over the tensors of all ranks: names, types, shapes and raw bytes.

    The codec does not count, so that a full checkpoint and a difference of the same state are equal.
    """
    digest = new_digest()
    for index in indexes:
        for tensor in index.tensors:
            if not tensor.is_stored:
                continue
            entry = tensor.entry
            line = [index.rank, entry.name, entry.dtype, entry.shape, entry.global_offset, tensor.digest]
            digest.update(json.dumps(line).encode() + b"\n")
    return digest.hexdigest()


def check_generation(there: ShardIndex, index: ShardIndex) -> None:
    """Raise CheckpointError if ``there``, of the same rank and step, is of a later generation than ``index``.

    A node that was cut off and replaced still writes the slots that it had pinned. It must not replace what the nodes
    after it have saved.
    """
    if there.run == index.run and there.generation > index.generation:
        raise CheckpointError(
            f"the shard of rank {index.rank} is of generation {index.generation}, and generation {there.generation} has"
            " saved this step again: nothing is lost"
        )


def make_way(directory: Path, index: ShardIndex) -> None:
    """Remove the index of an unfinished save of this rank and step, before its shard is replaced.

    What is committed stays. Another agent may commit the older shards at the same moment. It writes the manifest and
    then reads the indexes again; here the index is removed and then the manifest is looked for again. Whatever the
    order of the four, at least one of the two sees the other: the agent withdraws its manifest, or the index comes
    back here. Raises CheckpointCommitted and CheckpointError.
    """
    path, encoded = index_path(directory, index.rank), index.encode()
    _check_manifest(directory, index)
    with contextlib.suppress(CheckpointUnreadable, CheckpointUnavailable):  # there is none, or it is damaged
        check_generation(load_index(directory, index.rank), index)
    if not path.exists():
        return
    older = path.read_bytes()
    if older == encoded:
        return
    remove_file(path)
    flush_directory(directory)
    try:
        _check_manifest(directory, index)
    except CheckpointError:
        write_file(path, older)
        raise


def _check_manifest(directory: Path, index: ShardIndex) -> None:
    """Raise CheckpointCommitted if another state of this step is committed, CheckpointError if it is another run's."""
    manifest_path = directory / MANIFEST
    if not manifest_path.exists():
        return
    try:
        manifest = load_manifest(directory)
    except CheckpointUnreadable:
        remove_file(manifest_path)  # it is damaged and vouches for nothing
        flush_directory(directory)
        return
    if manifest.run != index.run:
        raise CheckpointError(
            f"{directory} is a checkpoint of run {manifest.run}: "
            f"set --checkpoints to a directory of its own for run {index.run}"
        )
    check_committed(manifest, index)


def check_committed(manifest: Manifest, index: ShardIndex) -> None:
    """Raise CheckpointCommitted unless ``index`` is the one that ``manifest``, of the same step, vouches for."""
    if index.rank < manifest.world_size and manifest.shards[index.rank].index_digest == index.digest:
        return
    raise CheckpointCommitted(
        f"the checkpoint of step {index.step} is committed already, by generation {manifest.generation}: it stays"
    )
