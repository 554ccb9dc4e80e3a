"""Reads a small file that anybody may have damaged, or put something else in place of."""

import os
import stat
from pathlib import Path


class UnfitFileError(OSError):
    """What is there is no regular file, or is too large. ``strerror`` completes "FILE: ..."."""


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file of up to ``most_bytes``. Raises OSError, UnfitFileError among them."""
    # Without O_NONBLOCK, a pipe would wait for its writer, forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnfitFileError(0, "it is no regular file", str(path))
        if status.st_size > most_bytes:
            raise UnfitFileError(0, f"it has more than {most_bytes} bytes", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(descriptor)
