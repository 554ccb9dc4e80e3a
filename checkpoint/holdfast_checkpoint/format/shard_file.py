"""Reads the payloads of a shard past the page cache, decodes them and compares them with the digests in its index."""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable, read_errors
from holdfast_checkpoint.codec.codec_registry import RAW, PayloadError, Previous, codec_named
from holdfast_checkpoint.format.sealed_json import new_digest
from holdfast_checkpoint.format.shard_index import ShardIndex, StoredTensor

# Reads a file from the disk itself, past the kernel's page cache.
#
# A shard that was just written is still in the page cache. To read it from there would only prove that memory holds it.

_LEAST_BYTES = 256 << 10
"""Smallest read in bytes: the caller is likely to want what comes next."""


class DirectFile:
    """A file that is read past the page cache (O_DIRECT) if the file system can do that. A context manager.

    Every method raises OSError as the system calls do.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor, self._is_direct = _open(path)
        self._position = 0
        self._buffer = mmap.mmap(-1, _LEAST_BYTES)  # direct reads are of whole pages
        self._view = memoryview(self._buffer)
        self._start = 0
        """Offset in the file at which the buffer begins: a multiple of the page size, as O_DIRECT demands."""
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor

    def seek(self, position: int) -> None:
        """Continue to read from ``position``, in bytes from the start of the file."""
        self._position = position

    def read(self, size: int) -> memoryview:
        """Return the next ``size`` bytes, fewer only at the end of the file; valid until the next call."""
        offset = self._position - self._start
        if not 0 <= offset <= offset + size <= self._count:
            self._fill(size)
            offset = self._position - self._start
        found = self._view[offset : min(offset + size, self._count)]
        self._position += len(found)
        return found

    def _fill(self, size: int) -> None:
        self._start = self._position - self._position % mmap.PAGESIZE
        needed_bytes = max(_LEAST_BYTES, _whole_pages(self._position + size - self._start))
        if needed_bytes > len(self._buffer):
            self._buffer = mmap.mmap(-1, needed_bytes)
            self._view = memoryview(self._buffer)
        self._count = 0
        while self._count < needed_bytes:
            # A direct read that ends within a page has reached the end of the file. The next one would not begin at a
            # page, which O_DIRECT refuses.
            if self._is_direct and self._count % mmap.PAGESIZE:
                return
            with self._view[self._count : needed_bytes] as rest:
                count = self._read_some(rest)
            if not count:
                return
            self._count += count

    def _read_some(self, into: memoryview) -> int:
        try:
            return os.preadv(self._descriptor, [into], self._start + self._count)
        except OSError as error:
            # Some file systems refuse only now: they do not support direct reads, or want other addresses.
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
        direct = self._descriptor
        self._descriptor, self._is_direct = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC), False
        os.close(direct)
        return os.preadv(self._descriptor, [into], self._start + self._count)


def _open(path: Path) -> tuple[int, bool]:
    """Return a descriptor, and whether it bypasses the page cache."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


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
