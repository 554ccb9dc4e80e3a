"""Files that are either whole or not there, whatever dies while they are written."""

import errno
import itertools
import os
import socket
from pathlib import Path
from typing import Self

_numbers = itertools.count()


class NewFile:
    """A file under a temporary name beside ``target``, until :meth:`publish`; removed if never published.

    A context manager. Every method raises OSError as the system calls do.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f"{target.name}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}.tmp")
        self._file = self.path.open("xb", buffering=0)
        self._published = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._published:
            self.path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        view = memoryview(data)
        while view.nbytes:
            view = view[self._file.write(view) :]

    def flush(self) -> None:
        """Wait until everything written is on the disk, and let the next reader fetch it from there."""
        os.fsync(self._file.fileno())
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def publish(self) -> None:
        """Give the file its name, replacing an older one, and wait until the disk knows it."""
        self.path.rename(self.target)
        self._published = True
        flush_directory(self.target.parent)


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
    path.mkdir(exist_ok=True)
    flush_directory(path.parent)


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
