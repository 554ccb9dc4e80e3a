"""The bytes of a shard, decoded and compared with the digests that its index gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from holdfast_proto.checkpoint.codec_registry import PayloadError, Previous, codec_named
from holdfast_proto.checkpoint.errors import CheckpointUnreadable, read_errors
from holdfast_proto.checkpoint.sealed_json import new_digest
from holdfast_proto.checkpoint.shard_index import StoredTensor

if TYPE_CHECKING:
    import xxhash


class ShardFile:
    """An open shard. A context manager. Memory: a few MiB, whatever the size of the tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_digest = new_digest()
        with read_errors(path):
            self._file: BinaryIO = path.open("rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def digest(self) -> str:
        """Of all stored bytes that were read so far: of the whole file, if that was once and in order."""
        return self._file_digest.hexdigest()

    def parts(
        self, tensor: StoredTensor, into: memoryview | None = None, previous: Previous | None = None
    ) -> Iterator[memoryview]:
        """Yield the raw bytes of a tensor in parts, which lie in ``into`` if that is given.

        ``into`` has the tensor's size; without it the next part overwrites the one before. ``previous`` is for
        a tensor that is stored as a difference. Raises CheckpointUnreadable if the bytes do not decode or are
        not those of the digest, after the last part at the latest: until then the parts count for nothing.
        """
        digest = new_digest()
        with read_errors(self.path):
            self._file.seek(tensor.stored_offset)
            payload = _Range(self._file, tensor.stored_bytes, self._file_digest)
            try:
                codec = codec_named(tensor.codec)
                nbytes, dtype = tensor.entry.nbytes, tensor.entry.dtype
                for part in codec.decode(payload, dtype, tensor.descriptor, nbytes, into, previous=previous):
                    digest.update(part)
                    yield part
            except PayloadError as error:
                raise self.damage(tensor, str(error)) from error
        if payload.left:
            raise self.damage(tensor, "is longer than it should be")
        if digest.hexdigest() != tensor.digest:
            raise self.damage(tensor, "does not match its digest")

    def is_at_end(self) -> bool:
        """Whether the file ends where the last read tensor does."""
        with read_errors(self.path):
            return not self._file.read(1)

    def damage(self, tensor: StoredTensor, what: str) -> CheckpointUnreadable:
        """Return the error that names this file and a tensor."""
        return CheckpointUnreadable(f"{self.path} is damaged: tensor {tensor.entry.name} {what}")


class _Range:
    """The next ``left`` bytes of a file, digested as they are read."""

    def __init__(self, file: BinaryIO, left: int, digest: "xxhash.xxh3_128") -> None:
        self.left = left
        self._file = file
        self._digest = digest

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self.left))
        self.left -= len(data)
        self._digest.update(data)
        return data
