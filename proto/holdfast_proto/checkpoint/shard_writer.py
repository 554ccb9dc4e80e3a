"""Puts tensors into a shard file, one after the other."""

from holdfast_proto.checkpoint.codec_registry import DEFAULT, codec_named
from holdfast_proto.checkpoint.durable import NewFile
from holdfast_proto.checkpoint.errors import CheckpointError, CheckpointUnreadable
from holdfast_proto.checkpoint.sealed_json import digest_of, new_digest
from holdfast_proto.checkpoint.shard_index import ShardIndex, StoredTensor
from holdfast_proto.checkpoint.shard_reader import verify_shard
from holdfast_proto.snapshot import TensorEntry


class ShardWriter:
    """Writes into ``file``, which the caller flushes and publishes."""

    def __init__(self, file: NewFile) -> None:
        self.stored_bytes = 0
        self._file = file
        self._digest = new_digest()

    @property
    def digest(self) -> str:
        """Of all that was stored so far."""
        return self._digest.hexdigest()

    def store(self, entry: TensorEntry, raw: memoryview) -> StoredTensor:
        """Append a tensor's bytes and return where they are. Raises OSError."""
        start = self.stored_bytes
        descriptor = codec_named(DEFAULT).encode(raw, entry.dtype, self._append)
        return StoredTensor(
            entry=entry,
            stored_offset=start,
            stored_bytes=self.stored_bytes - start,
            codec=DEFAULT,
            descriptor=descriptor,
            digest=digest_of(raw),
        )

    def _append(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)
        self.stored_bytes += len(data)


def read_back(file: NewFile, index: ShardIndex) -> None:
    """Compare a flushed shard with its index. Raises CheckpointError if the disk does not return what was written."""
    try:
        verify_shard(file.path, index)
    except CheckpointUnreadable as error:
        raise CheckpointError(
            f"the checkpoint did not read back as it was written ({error}): "
            "check the disk or set --checkpoints to another one"
        ) from error
