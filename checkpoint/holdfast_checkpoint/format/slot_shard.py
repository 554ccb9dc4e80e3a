"""Writes a rank's snapshot as a shard, of a checkpoint or a replica snapshot, and brings it back into a slot.

The order of writing decides what a crash can leave behind:

1. The shard is written under a temporary name, flushed, and read back. A crash leaves a file that no reader looks at.
2. An older index of the same rank and step is removed. From here on a commit finds this rank missing.
3. The shard gets its name. A shard without an index does not count.
4. The index is written. Now an agent may find the set complete and commit it.

A retry may begin after any of them: it writes the same bytes again, or replaces them in the same order. No step changes
a committed checkpoint.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import (
    CheckpointError,
    CheckpointUnavailable,
    CheckpointUnreadable,
    write_errors,
)
from holdfast_checkpoint.format.base_shard import BaseShard
from holdfast_checkpoint.format.durable import NewFile, make_directory, write_file
from holdfast_checkpoint.format.manifest import load_committed_index, load_manifest, make_way
from holdfast_checkpoint.format.shard_index import (
    Base,
    ShardIndex,
    StoredTensor,
    index_path,
    load_index,
    shard_path,
    step_directory,
)
from holdfast_checkpoint.format.shard_reader import ShardReader, TakeTensor
from holdfast_checkpoint.format.shard_writer import ShardWriter, read_back
from holdfast_checkpoint.format.slot_tensors import SlotFile, TensorBytes
from holdfast_proto.snapshot import Header, Meta, Slot, SlotState, SnapshotError, TensorEntry

_logger = logging.getLogger(__name__)


def write_shard(
    slot_path: Path,
    directory: Path,
    *,
    run: str,
    world_size: int,
    base_step: int | None = None,
    compress: Callable[[], bool] = lambda: True,
) -> ShardIndex:
    """Write the snapshot in a slot into a checkpoint's ``directory`` and return its index.

    Tensors that another rank stores (``TensorEntry.writer``) are left out. ``base_step`` names a full checkpoint next
    to this one: tensors are stored as differences to it where that is smaller, if it can be read. ``compress`` is
    called for every tensor; if it returns False, the tensor is stored raw.

    The caller sets the slot's persist flag before and clears it after, so that the slot does not change. What was
    written is read back from the disk and compared before it gets its name.

    Raises CheckpointError if the shard cannot be written, and CheckpointCommitted if the directory holds a commit with
    other contents, which stays. A failed write leaves nothing behind.
    """
    with write_errors(directory):
        return _write(
            slot_path, directory, _CHECKPOINT, base_step=base_step, run=run, world_size=world_size, compress=compress
        )


def write_replica(
    slot_path: Path,
    directory: Path,
    *,
    run: str,
    world_size: int,
    base_step: int | None = None,
    compress: Callable[[], bool] = lambda: True,
) -> ShardIndex:
    """Write the snapshot in a slot into ``directory`` as a replica snapshot and return its index.

    It is read alone. So all tensors of the rank are stored, whichever rank writes them to a checkpoint, and there is no
    manifest. ``base_step`` names a full replica snapshot of the rank next to this one. The rest is as in
    :func:`write_shard`.
    """
    with write_errors(directory, _REPLICA.what, "--shm-directory"):
        return _write(
            slot_path, directory, _REPLICA, base_step=base_step, run=run, world_size=world_size, compress=compress
        )


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What tells the shards of checkpoints from those of replica snapshots."""

    what: str
    """Name for messages."""
    find: Callable[[Path, int], ShardIndex]
    """Returns the index of a rank's shard in a directory that may be built on."""
    is_alone: bool
    """Whether the shard is read without those of other ranks."""


def _committed_index(directory: Path, rank: int) -> ShardIndex:
    return load_committed_index(directory, load_manifest(directory), rank)


_CHECKPOINT = _Kind("the checkpoint", _committed_index, is_alone=False)
_REPLICA = _Kind("the replica snapshot", load_index, is_alone=True)


def _write(
    slot_path: Path,
    directory: Path,
    kind: _Kind,
    *,
    base_step: int | None,
    run: str,
    world_size: int,
    compress: Callable[[], bool],
) -> ShardIndex:
    with _open(slot_path) as slot:
        header, meta = _contents(slot)
        make_directory(directory)
        write = functools.partial(
            _write_as, slot, header, meta, directory, kind, run=run, world_size=world_size, compress=compress
        )
        if base_step is not None:
            try:
                return write(base_step=base_step)
            except (CheckpointUnreadable, CheckpointUnavailable) as error:
                # A damaged base harms the shards that build on it. This one must not become another of them.
                _logger.warning("step %d is stored as a whole, not as a difference: %s", header.step, error)
        return write(base_step=None)


def _write_as(
    slot: Slot,
    header: Header,
    meta: Meta,
    directory: Path,
    kind: _Kind,
    *,
    run: str,
    world_size: int,
    base_step: int | None,
    compress: Callable[[], bool],
) -> ShardIndex:
    """Write and publish shard and index. Raises OSError and CheckpointError; CheckpointUnreadable of the base."""
    with contextlib.ExitStack() as opened:
        earlier = None
        if base_step is not None:
            earlier = opened.enter_context(_open_base(directory.parent, base_step, header.rank, kind))
        file = opened.enter_context(SlotFile(slot.path))
        shard = opened.enter_context(NewFile(shard_path(directory, header.rank)))
        writer = ShardWriter(shard, earlier, compress)
        tensors = tuple(
            writer.store(entry, TensorBytes(file, entry))
            if kind.is_alone or entry.writer in (None, header.rank)
            else StoredTensor(entry=entry)
            for entry in meta.tensors
        )
        shard.flush()
        index = ShardIndex(
            run=run,
            step=header.step,
            rank=header.rank,
            world_size=world_size,
            generation=header.generation,
            slot_bytes=slot.nbytes,
            data_bytes=header.data_bytes,
            coordinates=meta.coordinates,
            tree=meta.tree,
            tensors=tensors,
            shard_bytes=writer.stored_bytes,
            base=writer.base,
        )
        read_back(shard, index)
        # The agent pinned the slot. If a rank has written to it all the same, the shard may be a mix of two steps.
        if _without_pins(slot.header) != _without_pins(header):
            raise CheckpointError(f"snapshot slot {slot.path} changed while {kind.what} was written")
        make_way(directory, index)
        shard.publish()
    write_file(index_path(directory, header.rank), index.encode())
    return index


def read_shard(directory: Path, rank: int, slot_path: Path, *, generation: int) -> ShardIndex:
    """Unpack the state of ``rank`` from a committed checkpoint into a slot and return its index.

    The slot needs ``slot_bytes_needed(index)`` bytes. It becomes a complete snapshot of ``generation``, or an empty one
    if anything goes wrong: a rank never sees half of a state. Raises CheckpointUnreadable, CheckpointUnavailable, or
    SnapshotError if the slot is too small.
    """
    manifest = load_manifest(directory)
    index = load_committed_index(directory, manifest, rank)
    find = functools.partial(load_committed_index, directory, manifest)
    return _read(directory, index, slot_path, generation, find)


def read_replica(directory: Path, rank: int, slot_path: Path, *, generation: int) -> ShardIndex:
    """Unpack the replica snapshot of ``rank`` into a slot and return its index.

    Slot and errors are as in :func:`read_shard`.
    """
    index = load_index(directory, rank)
    if not all(tensor.is_stored for tensor in index.tensors):
        raise CheckpointUnreadable(f"{index_path(directory, rank)} is no replica snapshot: it lacks tensors")
    return _read(directory, index, slot_path, generation, functools.partial(load_index, directory))


def _read(
    directory: Path, index: ShardIndex, slot_path: Path, generation: int, find: Callable[[int], ShardIndex]
) -> ShardIndex:
    """Unpack a shard. ``find`` returns the index of another rank's shard that holds some of its tensors."""
    with Slot(slot_path) as slot:
        slot.begin(generation=generation, step=index.step, rank=index.rank)
        try:
            _unpack(directory, index, slot, find)
        except BaseException:
            slot.invalidate()
            raise
    return index


def _open(slot_path: Path) -> Slot:
    try:
        return Slot(slot_path)
    except (OSError, SnapshotError, ValueError) as error:
        raise CheckpointError(f"snapshot slot {slot_path} cannot be read: {error}") from error


def _open_base(folder: Path, step: int, rank: int, kind: _Kind) -> BaseShard:
    index = kind.find(step_directory(folder, step), rank)
    return BaseShard(folder, Base(step=step, index_digest=index.digest), rank)


def _contents(slot: Slot) -> tuple[Header, Meta]:
    try:
        header, meta = slot.header, slot.meta()
    except SnapshotError as error:
        raise CheckpointError(f"snapshot slot {slot.path} holds no complete snapshot: {error}") from error
    if header.state is not SlotState.COMPLETE:
        raise CheckpointError(f"snapshot slot {slot.path} changed while it was read")
    return header, meta


def _without_pins(header: Header) -> Header:
    """Return a header without what may change under a writer: another writer of the slot may release its own pin."""
    return dataclasses.replace(header, persist=False, replica=False)


def _unpack(directory: Path, index: ShardIndex, slot: Slot, find: Callable[[int], ShardIndex]) -> None:
    entries = [tensor.entry for tensor in index.tensors]
    for entry in entries:
        if entry.offset + entry.nbytes > slot.nbytes:
            raise SnapshotError(f"{slot.path}: {slot.nbytes} bytes are too few for tensor {entry.name}")
    with SlotFile(slot.path) as file:
        with ShardReader(shard_path(directory, index.rank)) as reader:
            reader.read_all(index, file.place)
        elsewhere = [tensor.entry for tensor in index.tensors if not tensor.is_stored]
        for writer in sorted({entry.writer for entry in elsewhere if entry.writer is not None}):
            _fetch(directory, find(writer), elsewhere, file.place)
    meta = Meta(index.tree, tuple(entries), coordinates=index.coordinates)
    slot.commit(meta, data_bytes=index.data_bytes, persist=False)


def _fetch(directory: Path, index: ShardIndex, wanted: list[TensorEntry], place: TakeTensor) -> None:
    """Read those of the wanted tensors that the rank of ``index`` stores."""
    path = shard_path(directory, index.rank)
    stored = {(tensor.entry.name, tensor.entry.global_offset): tensor for tensor in index.tensors if tensor.is_stored}
    with ShardReader(path) as reader:
        for entry in wanted:
            if entry.writer != index.rank:
                continue
            tensor = stored.get((entry.name, entry.global_offset))
            if tensor is None or tensor.entry.nbytes != entry.nbytes:
                raise CheckpointUnreadable(f"{path} lacks tensor {entry.name}, which it stores for others")
            place(entry, reader.chunks(tensor))
