"""Reads tensors of a shard from its disk and lets no wrong byte through."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from holdfast_proto.checkpoint.codec_registry import PayloadError, codec_named
from holdfast_proto.checkpoint.errors import CheckpointUnreadable, read_errors
from holdfast_proto.checkpoint.sealed_json import new_digest
from holdfast_proto.checkpoint.shard_index import ShardIndex, StoredTensor

if TYPE_CHECKING:
    import hashlib


class ShardReader:
    """Reads any tensor of one shard without the others. A context manager.

    Memory: a few MiB, whatever the size of the tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_digest = new_digest()
        with read_errors(path):
            self._file: BinaryIO = path.open("rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def chunks(self, tensor: StoredTensor, into: memoryview | None = None) -> Iterator[memoryview]:
        """Yield the raw bytes of a tensor in parts, which lie in ``into`` if that is given.

        ``into`` has the tensor's size; without it the next part overwrites the one before. Raises
        CheckpointUnreadable as soon as something is wrong, after the last part at the latest: until then the
        parts count for nothing.
        """
        entry = tensor.entry
        digest = new_digest()
        with read_errors(self.path):
            self._file.seek(tensor.stored_offset)
            payload = _Range(self._file, tensor.stored_bytes, self._file_digest)
            try:
                codec = codec_named(tensor.codec)
                for part in codec.decode(payload, entry.dtype, tensor.descriptor, entry.nbytes, into):
                    digest.update(part)
                    yield part
            except PayloadError as error:
                raise self._damage(tensor, str(error)) from error
        if payload.left:
            raise self._damage(tensor, "is longer than it should be")
        if digest.hexdigest() != tensor.digest:
            raise self._damage(tensor, "does not match its digest")

    def read(self, tensor: StoredTensor, into: memoryview) -> None:
        """Read a tensor into memory of its size. Raises CheckpointUnreadable."""
        for _ in self.chunks(tensor, into):
            pass

    def read_all(self, index: ShardIndex, into: dict[int, memoryview]) -> None:
        """Read the whole shard, its tensors to where ``into`` says by their position in the index, if it does.

        Raises CheckpointUnreadable if any byte is wrong, those that belong to no tensor included.
        """
        self._file_digest = new_digest()
        position = 0
        for number, tensor in enumerate(index.tensors):
            if not tensor.is_stored:
                continue
            if tensor.stored_offset != position:
                raise self._damage(tensor, "is not where this version stores it")
            for _ in self.chunks(tensor, into.get(number)):
                pass
            position += tensor.stored_bytes
        with read_errors(self.path):
            surplus = self._file.read(1)
        if surplus or position != index.shard_bytes or self._file_digest.hexdigest() != index.shard_digest:
            raise CheckpointUnreadable(f"{self.path} is damaged between its tensors: it does not match its digest")

    def _damage(self, tensor: StoredTensor, what: str) -> CheckpointUnreadable:
        return CheckpointUnreadable(f"{self.path} is damaged: tensor {tensor.entry.name} {what}")


class _Range:
    """The next ``left`` bytes of a file, digested as they are read."""

    def __init__(self, file: BinaryIO, left: int, digest: "hashlib.blake2b") -> None:
        self.left = left
        self._file = file
        self._digest = digest

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self.left))
        self.left -= len(data)
        self._digest.update(data)
        return data


def verify_shard(path: Path, index: ShardIndex) -> None:
    """Read the whole shard. Raises CheckpointUnreadable if it is not what ``index`` says."""
    with ShardReader(path) as reader:
        reader.read_all(index, {})
