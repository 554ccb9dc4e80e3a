"""Reads a file as the disk has it, past the memory in which the kernel keeps files."""

import errno
import mmap
import os
from pathlib import Path

from holdfast_proto.checkpoint.errors import read_errors
from holdfast_proto.checkpoint.sealed_json import new_digest

_READ_BYTES = 1 << 20


def disk_digest(path: Path) -> tuple[int, str]:
    """Return size and digest of a file that is flushed. Raises CheckpointUnreadable.

    Where the file system knows no direct reads (O_DIRECT), it is read as any file is.
    """
    with read_errors(path):
        try:
            return _digest(path, os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        return _digest(path, 0)


def _digest(path: Path, flags: int) -> tuple[int, str]:
    digest = new_digest()
    position = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        size = os.fstat(descriptor).st_size
        with mmap.mmap(-1, _READ_BYTES) as buffer, memoryview(buffer) as view:  # direct reads need whole pages
            while position < size and (count := os.readv(descriptor, [buffer])):
                digest.update(view[:count])
                position += count
    finally:
        os.close(descriptor)
    return position, digest.hexdigest()
