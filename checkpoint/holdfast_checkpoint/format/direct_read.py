"""Reads a file from the disk itself, past the kernel's page cache.

A shard that was just written is still in the page cache. To read it from there would only prove that memory holds it.
"""

import errno
import mmap
import os
from pathlib import Path
from typing import Self

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
