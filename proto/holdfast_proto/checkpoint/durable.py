"""Files that are either whole or not there, whatever dies while they are written.

All that changes a checkpoint on the disk goes through here.
"""

import errno
import itertools
import os
import socket
from pathlib import Path
from typing import Self

_UNFLUSHED_BYTES = 16 << 20
"""As much as this of a file waits in memory at most: the kernel never has to write much at once, and others find
the disk free in between."""

_numbers = itertools.count()


class NewFile:
    """A file under a temporary name beside ``target``, until :meth:`publish`; removed if never published.

    A context manager. Every method raises OSError as the system calls do.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f"{target.name}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}.tmp")
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._unflushed_bytes = 0
        self._published = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if not self._published:
            remove_file(self.path)

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        view = memoryview(data)
        while view.nbytes:
            written = os.write(self._descriptor, view)
            view = view[written:]
            self._unflushed_bytes += written
            if self._unflushed_bytes >= _UNFLUSHED_BYTES:
                os.fdatasync(self._descriptor)
                self.forget()

    def flush(self) -> None:
        """Wait until everything written is on the disk, and let the next reader fetch it from there."""
        os.fsync(self._descriptor)
        self.forget()

    def publish(self) -> None:
        """Give the file its name, replacing an older one, and wait until the disk knows it."""
        os.rename(self.path, self.target)  # noqa: PTH104 - one module has it all
        self._published = True
        flush_directory(self.target.parent)

    def forget(self) -> None:
        """Give up the memory in which the kernel keeps what is flushed: nobody reads it again soon."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self._unflushed_bytes = 0


def write_file(target: Path, data: bytes) -> None:
    """Create or replace ``target`` with ``data``, durably."""
    with NewFile(target) as new:
        new.write(data)
        new.flush()
        new.publish()


def make_directory(path: Path) -> None:
    """Create ``path`` and its parents, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        os.mkdir(path)  # noqa: PTH102 - one module has it all
    except FileExistsError:
        if not path.is_dir():
            raise
    flush_directory(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file if it is there; :func:`flush_directory` makes that last."""
    try:
        os.unlink(path)  # noqa: PTH108 - one module has it all
    except FileNotFoundError:
        return


def flush_directory(path: Path) -> None:
    """Wait until renames and removals in ``path`` are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush directories; their renames are synchronous.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
