"""Files that are either whole or not there, whatever dies while they are written.

Everything that changes a checkpoint on the disk goes through here. A file is written under a temporary name, flushed,
and renamed, and then its directory is flushed. The order is what makes it safe:

* A process that dies before the rename leaves a temporary file. No reader looks at it; the next start removes it.
* The rename is atomic: a reader finds the old file, or the new one, or none.
* Contents are flushed before the rename. Otherwise a power cut could leave the name with an empty file.
* The directory is flushed after the rename. Otherwise a power cut could undo the rename after it was reported.

A retry is safe at any point: it takes another temporary name, and its rename replaces whatever is there.
"""

import errno
import fcntl
import itertools
import mmap
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Self

from holdfast_base.files import SHARED_FOLDER, is_shared, share_file

_BUFFER_BYTES = 2 << 20
"""Bytes of one write. It bypasses the kernel's page cache (O_DIRECT) if the file system can do that: direct writes cost
half the CPU time, and nobody reads a shard soon after it was read back."""
_PART_BYTES = 256 << 10
"""Bytes that ``tell`` gets at a time: few enough to be still in the core's caches."""
_UNFLUSHED_BYTES = 16 << 20
"""Bytes of a file that may wait in the page cache if direct writes are impossible. With such a limit the kernel never
writes much at once, and others find the disk free in between."""

_numbers = itertools.count()


class NewFile:
    """A file under a temporary name next to ``target``, until :meth:`publish`; removed if never published.

    A context manager. Call :meth:`write` any number of times, then :meth:`flush`, then :meth:`publish`. Every method
    raises OSError as the system calls do.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        # Host, pid and number keep writers apart that write the same target: on other nodes, in other processes, and
        # in this one. They also say whose file it was, once its writer is dead: see writer_of().
        self.path = target.with_name(f"{target.name}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}.tmp")
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # direct writes are of whole pages
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        share_file(target, self._descriptor)
        self._buffered_bytes = 0
        self._is_direct = self._set_direct(True)
        self._unflushed_bytes = 0
        self._published = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._buffer.close()
        os.close(self._descriptor)
        if not self._published:
            remove_file(self.path)

    def write(self, data: bytes | memoryview, tell: Callable[[memoryview], None] = lambda _: None) -> None:
        """Append ``data``, which is in the file after :meth:`flush` at the latest.

        ``tell`` gets the data part by part, while it is in the core's caches, for example to compute a digest.
        """
        view = memoryview(data)
        while view.nbytes:
            start = self._buffered_bytes
            count = min(view.nbytes, _BUFFER_BYTES - start, _PART_BYTES)
            self._buffer[start : start + count] = view[:count]
            with memoryview(self._buffer) as buffer, buffer[start : start + count] as part:
                tell(part)
            self._buffered_bytes += count
            view = view[count:]
            if self._buffered_bytes == _BUFFER_BYTES:
                self._write_buffer()

    def flush(self) -> None:
        """Wait until everything written is on the disk, and drop it from the page cache.

        The next reader then gets the bytes from the disk. That is what reading back is for.
        """
        # A direct write must be of whole pages, and the end of the file is rarely one.
        if self._buffered_bytes % mmap.PAGESIZE and self._is_direct:
            self._is_direct = self._set_direct(False)
        self._write_buffer()
        os.fsync(self._descriptor)
        self.forget()

    def publish(self) -> None:
        """Rename the flushed file to ``target``, replacing an older one, and wait until that is on the disk."""
        assert not self._buffered_bytes, "flush() comes first"
        os.rename(self.path, self.target)  # noqa: PTH104 - one module has it all
        self._published = True
        flush_directory(self.target.parent)

    def _set_direct(self, is_direct: bool) -> bool:
        """Return ``is_direct``, or False if the file system does not support direct writes."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if is_direct else 0))
        except OSError:
            return False
        return is_direct

    def _write_buffer(self) -> None:
        with memoryview(self._buffer) as whole:
            written = 0
            while written < self._buffered_bytes:
                with whole[written : self._buffered_bytes] as rest:
                    written += self._write_some(rest)
        self._unflushed_bytes += written
        self._buffered_bytes = 0
        if self._unflushed_bytes >= _UNFLUSHED_BYTES and not self._is_direct:
            os.fdatasync(self._descriptor)
            self.forget()

    def _write_some(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            # Some file systems refuse only now: they do not support direct writes, or want other addresses.
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
        self._is_direct = self._set_direct(False)
        return os.write(self._descriptor, data)

    def forget(self) -> None:
        """Drop what is flushed from the page cache: nobody reads it again soon."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self._unflushed_bytes = 0


def writer_of(name: str) -> int | None:
    """Return the pid in the temporary name of a file that a process of this host writes; None for any other name."""
    match = re.fullmatch(rf".+\.{re.escape(socket.gethostname())}\.(\d+)\.\d+\.tmp", name)
    return None if match is None else int(match[1])


def write_file(target: Path, data: bytes) -> None:
    """Create or replace ``target`` with ``data``, durably and atomically. Raises OSError."""
    with NewFile(target) as new:
        new.write(data)
        new.flush()
        new.publish()


def make_directory(path: Path) -> None:
    """Create ``path`` and its parents, durably. Raises OSError."""
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        os.mkdir(path)  # noqa: PTH102 - one module has it all
        if is_shared(path.parent):
            os.chmod(path, SHARED_FOLDER)  # noqa: PTH101 - as above
    except FileExistsError:
        if not path.is_dir():
            raise
    flush_directory(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file if it is there. A power cut may undo that until :func:`flush_directory`. Raises OSError."""
    try:
        os.unlink(path)  # noqa: PTH108 - one module has it all
    except FileNotFoundError:
        return


def flush_directory(path: Path) -> None:
    """Wait until renames and removals in ``path`` are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush directories; their renames are synchronous.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
