"""Writes to the node's file systems, flushes, reads back and compares."""

import errno
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from holdfast_agent.preflight.outcomes import NodeFaultError, UnmeasuredError
from holdfast_agent.snapshots.memory_room import sized

DISK_BYTES = 32 << 20
SHM_BYTES = 16 << 20
TINY_BYTES = 64 << 10
"""Bytes that disturb nobody. They show whether a place can be written, not how fast it is."""

LEAST_FREE_BYTES = 64 << 20
"""Free bytes below which neither logs nor evidence of a run have room."""

_CHUNK_BYTES = 4 << 20
_LONGEST_S = 2.0
"""Time after which no further chunk is written: a slow place is measured with fewer."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN = (
    *(errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR),
    *(errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO, errno.EUCLEAN),
)
"""Errors of a place that no rank can write either. Any other one says something about this process."""


def disk(folders: Iterable[Path], nbytes: int = DISK_BYTES) -> float | None:
    """Return the bytes per second that the slowest file system of ``folders`` takes; None: there is no folder.

    Raises NodeFaultError if one of them cannot be written, is full, or returns other bytes.
    """
    by_file_system = {folder.stat().st_dev: folder for folder in folders if folder.is_dir()}
    return min((_disk(folder, nbytes) for folder in by_file_system.values()), default=None)


def _disk(folder: Path, nbytes: int) -> float:
    free = _free_bytes(folder)
    if free is not None and free < LEAST_FREE_BYTES:
        raise NodeFaultError(f"{folder} has only {sized(free)} free")
    try:
        return write_and_compare(folder, nbytes if free is None else min(nbytes, free // 2), flush=True)
    except OSError as error:
        if error.errno in (*_FULL, *_BROKEN):
            raise NodeFaultError(f"{folder} cannot be written: {error.strerror}") from None
        raise UnmeasuredError(f"{folder}: {error.strerror}") from None


def shared_memory(folder: Path, nbytes: int = SHM_BYTES) -> float:
    """Return the bytes per second that a memory file system takes. Little room is no fault: snapshots need none.

    Raises NodeFaultError if it cannot be written, or returns other bytes.
    """
    try:
        free = _free_bytes(folder)
        if free is not None and free < 2 * nbytes:
            raise UnmeasuredError(f"{folder} has only {sized(free)} free")
        return write_and_compare(folder, nbytes, flush=False)
    except OSError as error:
        if error.errno in _BROKEN:
            raise NodeFaultError(f"{folder} cannot be written: {error.strerror}") from None
        raise UnmeasuredError(f"{folder}: {error.strerror}") from None


def write_and_compare(folder: Path, nbytes: int, *, flush: bool) -> float:
    """Write random bytes to a file without a name and return the bytes per second, flushes included.

    Raises NodeFaultError if other bytes come back, OSError if the file system refuses.
    """
    data = memoryview(os.urandom(nbytes))
    written = 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began_s = time.perf_counter()
        while written < nbytes and time.perf_counter() - began_s < _LONGEST_S:
            written += file.write(data[written : written + _CHUNK_BYTES])
            if flush:
                os.fsync(file.fileno())
        took_s = time.perf_counter() - began_s
        if flush:  # else the kernel would return the bytes from its cache
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        if file.readall() != data[:written]:
            raise NodeFaultError(f"{folder} returns other bytes than were written to it")
    return written / took_s


def _free_bytes(folder: Path) -> int | None:
    """Return the bytes that are free; None if the file system does not say. Some on a network call all sizes 0."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize if status.f_blocks else None
