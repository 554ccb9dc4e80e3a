"""Keeps the size of a log within bounds while another process holds it open and appends to it."""

import os
import stat
from pathlib import Path

from holdfast_base.files import PARTIAL_SUFFIX, share_file

MOST_LOG_BYTES = 64 * 2**20
"""Size at which a log is emptied: people read its end, and ``holdfast logs`` takes seconds for so much."""
LOOK_EVERY_S = 10.0
"""Pause between two looks at the sizes. In this time, no process that prints text fills a disk."""


def limit_log(path: Path) -> bool:
    """Move the contents of a log that is too large to ``<log>.1``, and return whether it was. Raises OSError.

    Its writer holds the file open, so it is copied and emptied. Writers append, so they continue at its new beginning.
    What they write between the copy and the emptying is lost.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # nothing is written yet
        return False
    with os.fdopen(descriptor, "rb"):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= MOST_LOG_BYTES:
            return False
        partial = path.with_name(f"{path.name}{PARTIAL_SUFFIX}")
        partial.unlink(missing_ok=True)
        try:
            _copy_end(descriptor, status.st_size, partial)
        except OSError:  # a full disk must not get fuller
            partial.unlink(missing_ok=True)
            raise
        partial.replace(path.with_name(f"{path.name}.1"))
        os.ftruncate(descriptor, 0)
    return True


def _copy_end(log: int, size: int, copy: Path) -> None:
    with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        share_file(copy, file.fileno())
        offset, end = size - MOST_LOG_BYTES, size + MOST_LOG_BYTES
        # Up to an end, because its writer may write as fast as this copies.
        while sent := os.sendfile(file.fileno(), log, offset, end - offset):
            offset += sent
