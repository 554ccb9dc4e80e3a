"""Reads the payloads of a shard: decodes them and compares them with the digests in its index."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from holdfast_checkpoint.codec.registry import RAW, PayloadError, Previous, codec_named
from holdfast_checkpoint.errors import CheckpointUnreadable, read_errors
from holdfast_checkpoint.format.direct_read import DirectFile
from holdfast_checkpoint.format.sealed_json import new_digest
from holdfast_checkpoint.format.shard_index import ShardIndex, StoredTensor

if TYPE_CHECKING:
    import xxhash

_READ_BYTES = 1 << 20


class ShardFile:
    """An open shard. A context manager. Memory: a few MiB, whatever the size of the tensors.

    With ``direct`` it is read from the disk, past the page cache.
    """

    def __init__(self, path: Path, *, direct: bool = False) -> None:
        self.path = path
        with read_errors(path):
            self._file: BinaryIO | DirectFile = DirectFile(path) if direct else path.open("rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def parts(
        self, tensor: StoredTensor, into: memoryview | None = None, previous: Previous | None = None
    ) -> Iterator[memoryview]:
        """Yield the raw bytes of a tensor in parts.

        The parts are in ``into``, which has the tensor's size; without it the next part overwrites the one before.
        ``previous`` is the earlier state of a tensor that is stored as a difference. Raises CheckpointUnreadable if the
        bytes do not decode or do not match their digests. That may be after the last part: do not use the parts before.
        """
        digest = new_digest()
        with read_errors(self.path):
            payload = self._payload(tensor)
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
        if digest.hexdigest() != tensor.digest or payload.digest not in (None, tensor.stored_digest):
            raise self.damage(tensor, "does not match its digest")

    def check(self, index: ShardIndex) -> None:
        """Read the whole file without decoding it. Raises CheckpointUnreadable if ``index`` describes another one."""
        self.check_extent(index)
        for tensor in index.tensors:
            if tensor.is_stored:
                self._check_stored(tensor)

    def _check_stored(self, tensor: StoredTensor) -> None:
        digest = new_digest()
        left = tensor.stored_bytes
        with read_errors(self.path):
            self._file.seek(tensor.stored_offset)
            while left and (data := self._file.read(min(left, _READ_BYTES))):
                digest.update(data)
                left -= len(data)
        if left or digest.hexdigest() != tensor.stored_digest:
            raise self.damage(tensor, "does not match its digest")

    def check_extent(self, index: ShardIndex) -> None:
        """Raise CheckpointUnreadable if a byte of the file belongs to no tensor, or if some are missing."""
        position = 0
        for tensor in index.tensors:
            if not tensor.is_stored:
                continue
            if tensor.stored_offset != position:
                raise self.damage(tensor, "is not where this version stores it")
            position += tensor.stored_bytes
        with read_errors(self.path):
            size = os.fstat(self._file.fileno()).st_size
        if not size == position == index.shard_bytes:
            raise CheckpointUnreadable(
                f"{self.path} is damaged: it has {size} bytes, its index says {index.shard_bytes}, and its tensors"
                f" take {position}"
            )

    def damage(self, tensor: StoredTensor, what: str) -> CheckpointUnreadable:
        """Return the error that names this file and a tensor."""
        return CheckpointUnreadable(f"{self.path} is damaged: tensor {tensor.entry.name} {what}")

    def _payload(self, tensor: StoredTensor) -> "_Payload":
        self._file.seek(tensor.stored_offset)
        # A payload that is stored raw equals the raw bytes, so that one digest is enough.
        return _Payload(self._file, tensor.stored_bytes, None if tensor.codec == RAW else new_digest())


class _Payload:
    """The next ``left`` bytes of a file, digested as they are read."""

    def __init__(self, file: BinaryIO | DirectFile, left: int, digest: "xxhash.xxh3_128 | None") -> None:
        self.left = left
        self._file = file
        self._digest = digest

    @property
    def digest(self) -> str | None:
        """Digest of the bytes read so far; None for a payload that is not digested."""
        return self._digest and self._digest.hexdigest()

    def read(self, size: int) -> bytes | memoryview:
        data = self._file.read(min(size, self.left)) if self.left else b""
        self.left -= len(data)
        if self._digest is not None:
            self._digest.update(data)
        return data
