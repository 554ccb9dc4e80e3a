"""Reads a shard from its disk, tensor by tensor, and lets no wrong byte through."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self, cast

import zstandard

from holdfast_agent.checkpoint_errors import CheckpointUnreadable, read_errors
from holdfast_agent.sealed_json import new_digest
from holdfast_agent.shard_index import CODEC, ShardIndex, StoredTensor

if TYPE_CHECKING:
    import hashlib

CHUNK_BYTES = 4 << 20
_READ_BYTES = 1 << 20


class ShardReader:
    """Reads one shard once, from its first tensor to its last. A context manager.

    Call :meth:`chunks` for every tensor of the index in order, each to its end, then :meth:`finish`.
    Memory: one chunk and one read buffer, whatever the size of the tensors.
    """

    def __init__(self, path: Path, index: ShardIndex) -> None:
        self._path = path
        self._index = index
        self._digest = new_digest()
        self._position = 0
        self._scratch = memoryview(bytearray(CHUNK_BYTES))
        with read_errors(path):
            self._file: BinaryIO = path.open("rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def chunks(self, tensor: StoredTensor, into: memoryview | None = None) -> Iterator[memoryview]:
        """Yield the raw bytes of the next tensor in order, in parts of CHUNK_BYTES (the last may be shorter).

        The parts lie in ``into``, which has the tensor's size, or else in a buffer that the next part
        overwrites. Raises CheckpointUnreadable as soon as something is wrong, after the last part at
        the latest: until then the parts count for nothing.
        """
        if tensor.stored_offset != self._position or tensor.codec != CODEC:
            raise self._damage(tensor, "is not where and how this version stores it")
        digest = new_digest()
        source = _Range(self._file, tensor.stored_bytes, self._digest)
        opened = zstandard.ZstdDecompressor().stream_reader(cast(BinaryIO, source), _READ_BYTES, closefd=False)
        with read_errors(self._path), opened as stream:
            for offset in range(0, tensor.entry.nbytes, CHUNK_BYTES):
                size = min(CHUNK_BYTES, tensor.entry.nbytes - offset)
                part = self._scratch[:size] if into is None else into[offset : offset + size]
                self._fill(stream, part, tensor)
                digest.update(part)
                yield part
            self._expect_end(stream, source, tensor)
        if digest.hexdigest() != tensor.digest:
            raise self._damage(tensor, "does not match its digest")
        self._position += tensor.stored_bytes

    def finish(self) -> None:
        """Raise CheckpointUnreadable if the file as a whole is not what was written."""
        with read_errors(self._path):
            surplus = self._file.read(1)
        if surplus or self._position != self._index.shard_bytes or self._digest.hexdigest() != self._index.shard_digest:
            raise CheckpointUnreadable(f"{self._path} is damaged between its tensors: it does not match its digest")

    def _fill(self, stream: zstandard.ZstdDecompressionReader, part: memoryview, tensor: StoredTensor) -> None:
        filled = 0
        while filled < len(part):
            try:
                count = stream.readinto(part[filled:])
            except zstandard.ZstdError as error:
                raise self._damage(tensor, f"does not decompress ({error})") from error
            if count == 0:
                raise self._damage(tensor, "ends too early")
            filled += count

    def _expect_end(self, stream: zstandard.ZstdDecompressionReader, source: "_Range", tensor: StoredTensor) -> None:
        try:
            surplus = stream.read(1)
        except zstandard.ZstdError as error:
            raise self._damage(tensor, f"does not decompress ({error})") from error
        if surplus or source.left:
            raise self._damage(tensor, "is longer than it should be")

    def _damage(self, tensor: StoredTensor, what: str) -> CheckpointUnreadable:
        return CheckpointUnreadable(f"{self._path} is damaged: tensor {tensor.entry.name} {what}")


class _Range:
    """The next ``size`` bytes of a file, digested as they are read."""

    def __init__(self, file: BinaryIO, size: int, digest: "hashlib.blake2b") -> None:
        self.left = size
        self._file = file
        self._digest = digest

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self.left))
        self.left -= len(data)
        self._digest.update(data)
        return data


def verify_shard(path: Path, index: ShardIndex) -> None:
    """Read the whole shard. Raises CheckpointUnreadable if it is not what ``index`` says."""
    with ShardReader(path, index) as reader:
        for tensor in index.tensors:
            for _ in reader.chunks(tensor):
                pass
        reader.finish()
