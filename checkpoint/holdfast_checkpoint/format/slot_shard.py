"""Writes a rank's snapshot to durable storage as a shard, and brings it back into a slot.

The order of writing decides what a crash can leave behind:

1. The shard is written under a temporary name, flushed, and read back. A crash leaves a file that no reader looks at.
2. An older index of the same rank and step is removed. From here on a commit finds this rank missing.
3. The shard gets its name. A shard without an index does not count.
4. The index is written. Now an agent may find the set complete and commit it.

A retry may begin after any of them: it writes the same bytes again, or replaces them in the same order. No step changes
a committed checkpoint.
"""

import contextlib
import functools
import logging
from collections.abc import Callable
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import (
    CheckpointCommitted,
    CheckpointError,
    CheckpointUnavailable,
    CheckpointUnreadable,
    write_errors,
)
from holdfast_checkpoint.format.base_shard import BaseShard
from holdfast_checkpoint.format.durable import NewFile, flush_directory, make_directory, remove_file, write_file
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, load_committed_index, load_manifest
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
    with _open(slot_path) as slot, write_errors(directory):
        header, meta = _contents(slot)
        make_directory(directory)
        write = functools.partial(
            _write, slot, header, meta, directory, run=run, world_size=world_size, compress=compress
        )
        if base_step is not None:
            try:
                return write(base_step=base_step)
            except (CheckpointUnreadable, CheckpointUnavailable) as error:
                # A damaged base harms the checkpoints that build on it. This one must not become another of them.
                _logger.warning("step %d is stored as a whole, not as a difference: %s", header.step, error)
        return write(base_step=None)


def _write(
    slot: Slot,
    header: Header,
    meta: Meta,
    directory: Path,
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
            earlier = opened.enter_context(_open_base(directory.parent, base_step, header.rank))
        file = opened.enter_context(SlotFile(slot.path))
        shard = opened.enter_context(NewFile(shard_path(directory, header.rank)))
        writer = ShardWriter(shard, earlier, compress)
        tensors = tuple(_store(file, entry, writer, rank=header.rank) for entry in meta.tensors)
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
        if slot.header != header:
            raise CheckpointError(f"snapshot slot {slot.path} changed while its checkpoint was written")
        _make_way(directory, index)
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
    with Slot(slot_path) as slot:
        slot.begin(generation=generation, step=index.step, rank=rank)
        try:
            _unpack(directory, manifest, index, slot)
        except BaseException:
            slot.invalidate()
            raise
    return index


def _open(slot_path: Path) -> Slot:
    try:
        return Slot(slot_path)
    except (OSError, SnapshotError, ValueError) as error:
        raise CheckpointError(f"snapshot slot {slot_path} cannot be read: {error}") from error


def _open_base(checkpoints: Path, step: int, rank: int) -> BaseShard:
    directory = step_directory(checkpoints, step)
    index = load_committed_index(directory, load_manifest(directory), rank)
    return BaseShard(checkpoints, Base(step=step, index_digest=index.digest), rank)


def _contents(slot: Slot) -> tuple[Header, Meta]:
    try:
        header, meta = slot.header, slot.meta()
    except SnapshotError as error:
        raise CheckpointError(f"snapshot slot {slot.path} holds no complete snapshot: {error}") from error
    if header.state is not SlotState.COMPLETE:
        raise CheckpointError(f"snapshot slot {slot.path} changed while it was read")
    return header, meta


def _store(slot: SlotFile, entry: TensorEntry, writer: ShardWriter, *, rank: int) -> StoredTensor:
    if entry.writer not in (None, rank):
        return StoredTensor(entry=entry)
    return writer.store(entry, TensorBytes(slot, entry))


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


def _make_way(directory: Path, index: ShardIndex) -> None:
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


def _unpack(directory: Path, manifest: Manifest, index: ShardIndex, slot: Slot) -> None:
    entries = [tensor.entry for tensor in index.tensors]
    for entry in entries:
        if entry.offset + entry.nbytes > slot.nbytes:
            raise SnapshotError(f"{slot.path}: {slot.nbytes} bytes are too few for tensor {entry.name}")
    with SlotFile(slot.path) as file:
        with ShardReader(shard_path(directory, index.rank)) as reader:
            reader.read_all(index, file.place)
        elsewhere = [tensor.entry for tensor in index.tensors if not tensor.is_stored]
        for writer in sorted({entry.writer for entry in elsewhere if entry.writer is not None}):
            _fetch(directory, load_committed_index(directory, manifest, writer), elsewhere, file.place)
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
