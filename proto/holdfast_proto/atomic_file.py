"""Replaces files atomically: a reader finds the old contents or the new ones, also if the writer dies.

Nothing is flushed to the disk, so that after a power cut a file may be empty. What must survive one is written by
``holdfast_checkpoint.format.durable``.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL_SUFFIX = ".partial"
"""End of the name of a file that is still being written."""


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Create or replace the file at ``path``. Its permissions are those of ``mode`` that the umask allows.

    Raises OSError; the old file then stays as it was.
    """
    with replacement(path) as partial:
        # O_EXCL: another user may have put a link in this place since the last line, and it must not be followed.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield a path next to ``path`` for the new file, which becomes ``path`` at the end of the block.

    If the block raises, the new file is removed and the old one stays. Raises OSError, also if a device, a pipe or a
    folder has this name: a file must not take its place.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    # A writer that died may have left one, and another user may have put one there: neither is written into.
    partial.unlink(missing_ok=True)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
