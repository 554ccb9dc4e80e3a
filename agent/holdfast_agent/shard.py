"""Writes a rank's snapshot to durable storage as a shard, and brings it back into a slot."""

from pathlib import Path

import zstandard

from holdfast_agent.checkpoint_errors import CheckpointError, CheckpointUnreadable, write_errors
from holdfast_agent.durable import NewFile, flush_directory, make_directory, write_file
from holdfast_agent.manifest import MANIFEST, load_committed_index, load_manifest
from holdfast_agent.sealed_json import new_digest
from holdfast_agent.shard_index import CODEC, ShardIndex, StoredTensor, index_path, shard_path
from holdfast_agent.shard_reader import CHUNK_BYTES, ShardReader, verify_shard
from holdfast_proto.snapshot import Header, Meta, Slot, SlotState, SnapshotError, TensorEntry

_LEVEL = 1


def write_shard(slot_path: Path, directory: Path, *, run: str, world_size: int) -> ShardIndex:
    """Write the snapshot in a slot into a checkpoint's ``directory`` and return its index.

    The slot must stay untouched meanwhile (its persist flag set; clearing it is the caller's). What was
    written is read back from the disk and compared before it gets its name. If the directory holds a
    commit with other contents (the run went back and came here again), that commit ends here.

    Raises CheckpointError; nothing of a failed write is left behind.
    """
    with _open(slot_path) as slot, write_errors(directory):
        header, meta = _contents(slot)
        make_directory(directory)
        with NewFile(shard_path(directory, header.rank)) as shard:
            tensors, digest = _compress(slot, meta.tensors, shard)
            shard.flush()
            index = ShardIndex(
                run=run,
                step=header.step,
                rank=header.rank,
                world_size=world_size,
                generation=header.generation,
                slot_bytes=slot.nbytes,
                data_bytes=header.data_bytes,
                tree=meta.tree,
                tensors=tensors,
                shard_bytes=sum(tensor.stored_bytes for tensor in tensors),
                shard_digest=digest,
            )
            _read_back(shard.path, index)
            if slot.header != header:
                raise CheckpointError(f"snapshot slot {slot.path} changed while its checkpoint was written")
            _retire(directory, index)
            shard.publish()
        write_file(index_path(directory, header.rank), index.encode())
    return index


def read_shard(directory: Path, rank: int, slot_path: Path, *, generation: int) -> ShardIndex:
    """Unpack the shard of ``rank`` from a committed checkpoint into a slot and return its index.

    The slot has at least ``slot_bytes_needed(index)`` bytes and becomes a complete snapshot of
    ``generation``; if anything is wrong, an empty one. Raises CheckpointUnreadable, or SnapshotError
    if the slot is too small.
    """
    index = load_committed_index(directory, load_manifest(directory), rank)
    with Slot(slot_path) as slot:
        slot.begin(generation=generation, step=index.step, rank=rank)
        try:
            _unpack(shard_path(directory, rank), index, slot)
        except BaseException:
            slot.invalidate()
            raise
    return index


def _open(slot_path: Path) -> Slot:
    try:
        return Slot(slot_path)
    except (OSError, SnapshotError, ValueError) as error:
        raise CheckpointError(f"snapshot slot {slot_path} cannot be read: {error}") from error


def _contents(slot: Slot) -> tuple[Header, Meta]:
    try:
        header, meta = slot.header, slot.meta()
    except (SnapshotError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"snapshot slot {slot.path} holds no complete snapshot: {error}") from error
    if header.state is not SlotState.COMPLETE or not all(_is_inside(entry, slot.nbytes) for entry in meta.tensors):
        raise CheckpointError(f"snapshot slot {slot.path} is inconsistent: a tensor lies outside of it")
    return header, meta


def _is_inside(entry: TensorEntry, slot_bytes: int) -> bool:
    return 0 <= entry.offset <= entry.offset + entry.nbytes <= slot_bytes


def _compress(slot: Slot, entries: tuple[TensorEntry, ...], shard: NewFile) -> tuple[tuple[StoredTensor, ...], str]:
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    file_digest = new_digest()
    tensors: list[StoredTensor] = []
    offset = 0

    def store(data: bytes) -> None:
        nonlocal offset
        file_digest.update(data)
        shard.write(data)
        offset += len(data)

    for entry in entries:
        start = offset
        digest = new_digest()
        frame = compressor.compressobj(size=entry.nbytes)
        with slot.tensor_bytes(entry) as raw:
            for position in range(0, entry.nbytes, CHUNK_BYTES):
                with raw[position : position + CHUNK_BYTES] as part:
                    digest.update(part)
                    store(frame.compress(part))
        store(frame.flush())
        tensors.append(
            StoredTensor(
                entry=entry, stored_offset=start, stored_bytes=offset - start, codec=CODEC, digest=digest.hexdigest()
            )
        )
    return tuple(tensors), file_digest.hexdigest()


def _read_back(path: Path, index: ShardIndex) -> None:
    try:
        verify_shard(path, index)
    except CheckpointUnreadable as error:
        raise CheckpointError(
            f"the checkpoint did not read back as it was written ({error}): "
            "check the disk or set --checkpoints to another one"
        ) from error


def _retire(directory: Path, index: ShardIndex) -> None:
    """Withdraw what vouches for another shard of this rank and step, before that shard is replaced."""
    manifest_path, path = directory / MANIFEST, index_path(directory, index.rank)
    _check_owner(manifest_path, index.run)
    if path.exists() and path.read_bytes() != index.encode():
        manifest_path.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        flush_directory(directory)


def _check_owner(manifest_path: Path, run: str) -> None:
    if not manifest_path.exists():
        return
    try:
        owner = load_manifest(manifest_path.parent).run
    except CheckpointUnreadable:
        return  # damaged: nothing to lose
    if owner != run:
        raise CheckpointError(
            f"{manifest_path.parent} is a checkpoint of run {owner}: "
            f"set --checkpoints to a directory of its own for run {run}"
        )


def _unpack(path: Path, index: ShardIndex, slot: Slot) -> None:
    meta = Meta(index.tree, tuple(tensor.entry for tensor in index.tensors))
    with ShardReader(path, index) as reader:
        for tensor in index.tensors:
            if not _is_inside(tensor.entry, slot.nbytes):
                raise SnapshotError(f"{slot.path}: {slot.nbytes} bytes are too few for tensor {tensor.entry.name}")
            with slot.tensor_bytes(tensor.entry) as into:
                for _ in reader.chunks(tensor, into):
                    pass
        reader.finish()
    slot.commit(meta, data_bytes=index.data_bytes, persist=False)
