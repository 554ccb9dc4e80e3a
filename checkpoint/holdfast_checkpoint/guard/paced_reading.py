"""Reads files of a checkpoint at a limited rate, so that the storage stays free for the run."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from holdfast_checkpoint.guard.damage import DamagedFileError

_LEAST_SLEEP_S, _LONGEST_SLEEP_S = 0.02, 0.5
PIECE_BYTES = 1 << 20
"""Bytes of one read, and the most of a file that is in memory at a time."""


def _never() -> None:
    pass


class Pace:
    """Counts what was read, and sleeps so that no more than ``bytes_per_s`` are read. 0: no limit.

    ``check`` is called before each read and in each sleep. An exception from it ends the reading.
    """

    def __init__(self, bytes_per_s: float = 0.0, check: Callable[[], None] = _never) -> None:
        self._bytes_per_s = bytes_per_s
        self._check = check
        self._free_at_s = 0.0
        self.bytes_total = 0
        """Bytes read so far."""

    def take(self, count: int) -> None:
        """Count ``count`` bytes, and sleep until they are allowed."""
        self._check()
        self.bytes_total += count
        if not self._bytes_per_s:
            return
        self._free_at_s = max(time.monotonic(), self._free_at_s) + count / self._bytes_per_s
        # Small reads may run ahead: a sleep for each of them would take longer than the read.
        while (rest_s := self._free_at_s - time.monotonic()) > _LEAST_SLEEP_S:
            time.sleep(min(rest_s, _LONGEST_SLEEP_S))
            self._check()


class PacedFile:
    """A file that is open for reading at any place. Use it with ``with``. Raises OSError."""

    def __init__(self, path: Path, pace: Pace, *, drops_cache: bool = False) -> None:
        """Open ``path``. ``drops_cache``: give back the page cache of what was read, when the file is closed."""
        self.path = path
        self._pace = pace
        self._drops_cache = drops_cache
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.size = os.fstat(self._descriptor).st_size

    def __enter__(self) -> "PacedFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drops_cache:
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._descriptor)

    def read(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes from ``offset``. Raises DamagedFileError if the file ends before."""
        parts = list(self.pieces(offset, count))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pieces(self, offset: int, count: int) -> Iterator[bytes]:
        """Yield ``count`` bytes from ``offset`` in pieces of up to PIECE_BYTES."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise DamagedFileError(f"it ends at byte {self.size}, and byte {offset + count} is needed")
        end = offset + count
        while offset < end:
            piece = os.pread(self._descriptor, min(PIECE_BYTES, end - offset), offset)
            if not piece:
                raise DamagedFileError(f"it ends at byte {offset}, and byte {end} is needed")
            self._pace.take(len(piece))
            offset += len(piece)
            yield piece


class FileReader:
    """Opens files, all at one pace."""

    def __init__(self, pace: Pace, *, drops_cache: bool = False) -> None:
        self.pace = pace
        self._drops_cache = drops_cache

    @contextmanager
    def open(self, path: Path) -> Iterator[PacedFile]:
        """Open a file."""
        with PacedFile(path, self.pace, drops_cache=self._drops_cache) as file:
            yield file
