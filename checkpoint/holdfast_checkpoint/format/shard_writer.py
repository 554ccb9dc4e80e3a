"""Writes tensors into a shard file, one after the other, and proves that they can be read again.

A tensor is proved twice: each piece is decoded before it is written, and the file is read back from the disk before it
gets its name. The first finds damaged cores and memory, the second damaged disks.
"""

import contextlib
from collections.abc import Callable

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.codec.codec_registry import BYTE_PLANES, RAW, PayloadError, RawBytes, codec_named
from holdfast_checkpoint.format.base_shard import BaseShard
from holdfast_checkpoint.format.durable import NewFile
from holdfast_checkpoint.format.sealed_json import new_digest
from holdfast_checkpoint.format.shard_file import ShardFile
from holdfast_checkpoint.format.shard_index import Base, ShardIndex, StoredTensor
from holdfast_proto.snapshot import TensorEntry


class ShardWriter:
    """Writes into ``file``, which the caller flushes and publishes.

    With ``earlier``, tensors that have changed little are stored as differences to that shard. ``compress`` is called
    for every tensor; if it returns False, the tensor is stored raw.
    """

    def __init__(
        self, file: NewFile, earlier: BaseShard | None = None, compress: Callable[[], bool] = lambda: True
    ) -> None:
        self.stored_bytes = 0
        """Bytes written so far."""
        self.base: Base | None = None
        """Base of the shard: ``earlier``, once a tensor is stored as a difference to it."""
        self._earlier = earlier
        self._file = file
        self._compress = compress

    def store(self, entry: TensorEntry, raw: RawBytes) -> StoredTensor:
        """Append a tensor's bytes and return where they are.

        Each piece is decoded and compared before it is written. Raises OSError, CheckpointUnreadable if the earlier
        state is damaged, and CheckpointError if a piece does not decode to the tensor's bytes.
        """
        start = self.stored_bytes
        name = BYTE_PLANES if self._compress() else RAW
        codec = codec_named(name)
        stored_digest = new_digest()
        # A tensor that is stored raw has one digest for both.
        digest = stored_digest if name == RAW else new_digest()

        def append(data: bytes | memoryview) -> None:
            self._file.write(data, tell=stored_digest.update)
            self.stored_bytes += len(data)

        with contextlib.ExitStack() as opened:
            previous = None
            if name != RAW and self._earlier is not None and self._earlier.holds(entry):
                previous = opened.enter_context(self._earlier.earlier(entry))
            try:
                decoded = None if name == RAW else digest.update
                descriptor = codec.encode(raw, entry.dtype, append, previous=previous, decoded=decoded)
            except PayloadError as error:
                raise CheckpointError(
                    f"tensor {entry.name} {error}: the processor or the memory of this node is damaged, or another"
                    " process writes to the snapshot: take the node out of service"
                ) from error
        if self._earlier is not None and codec.needs_previous(descriptor):
            self.base = self._earlier.base
        return StoredTensor(
            entry=entry,
            stored_offset=start,
            stored_bytes=self.stored_bytes - start,
            codec=name,
            descriptor=descriptor,
            digest=digest.hexdigest(),
            stored_digest=stored_digest.hexdigest(),
        )


def read_back(file: NewFile, index: ShardIndex) -> None:
    """Read a flushed shard from the disk. Raises CheckpointError if it does not return what was written."""
    try:
        with ShardFile(file.path, direct=True) as shard:
            shard.check(index)
    except (CheckpointUnreadable, CheckpointUnavailable) as error:
        raise CheckpointError(
            f"the checkpoint did not read back as it was written ({error}): "
            "check the disk or set --checkpoints to another one"
        ) from error
    file.forget()
