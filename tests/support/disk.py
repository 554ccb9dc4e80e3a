"""A disk that forgets what was not flushed: it records all changes, and shows what each power cut leaves.

It records the system calls of ``holdfast_checkpoint.format.durable``. The model is strict: contents count once the file
is flushed, and names and removals count once their directory is flushed.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLAGS = ("O_WRONLY", "O_RDONLY", "O_DIRECTORY", "O_CREAT", "O_EXCL", "O_CLOEXEC", "O_DIRECT")
NOT_RECORDED = (*FLAGS, "POSIX_FADV_DONTNEED")


@dataclass(frozen=True)
class Call:
    """One system call. ``write`` has a file and data, ``rename`` has two paths, the others have one path."""

    name: str
    path: Path
    target: Path | None = None
    data: bytes = b""


class RecordingOs:
    """A stand-in for the module ``os``. It carries out each call and records those that change the disk."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._paths: dict[int, Path] = {}

    def __getattr__(self, name: str) -> Any:
        assert name in NOT_RECORDED or name in ("getpid", "posix_fadvise", "close"), f"os.{name} is not in the model"
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """Open a file, or a directory that is to be flushed."""
        descriptor = os.open(path, flags, mode)
        self._paths[descriptor] = path
        if flags & os.O_CREAT:
            self.calls.append(Call("create", path))
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write only a part of the data, as kernels may."""
        written = os.write(descriptor, data[: len(data) // 2] if len(data) > 200 else data)
        self.calls.append(Call("write", self._paths[descriptor], data=bytes(data[:written])))
        return written

    def fsync(self, descriptor: int) -> None:
        """Flush a file or a directory."""
        os.fsync(descriptor)
        self.calls.append(Call("flush", self._paths[descriptor]))

    fdatasync = fsync

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file."""
        path.rename(target)
        self.calls.append(Call("rename", path, target))

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()
        self.calls.append(Call("unlink", path))

    def mkdir(self, path: Path) -> None:
        """Create a directory."""
        path.mkdir()
        self.calls.append(Call("mkdir", path))


class _File:
    """A file's contents as programs see them and as the disk has them."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.flushed = b""

    def contents(self, is_flushed: bool) -> bytes:
        """Return the contents that were flushed, or all that was written."""
        return self.flushed if is_flushed else bytes(self.seen)


Names = dict[Path, "_File | None"]
"""Path -> file; None stands for a directory."""


class Disk:
    """The state that programs see and the state on the disk, after the calls so far."""

    def __init__(self) -> None:
        self.seen: Names = {}
        self.flushed: Names = {}

    def do(self, call: Call) -> None:
        """Apply a call."""
        match call.name:
            case "create":
                self.seen[call.path] = _File()
            case "mkdir":
                self.seen[call.path] = None
            case "write":
                self._file(call.path).seen += call.data
            case "rename":
                assert call.target is not None
                self.seen[call.target] = self.seen.pop(call.path)
            case "unlink":
                del self.seen[call.path]
            case "flush" if isinstance(self.seen.get(call.path), _File):
                self._file(call.path).flushed = bytes(self._file(call.path).seen)
            case "flush":
                self._flush_directory(call.path)

    def leave(self, folder: Path, names: Names, *, is_flushed: bool) -> None:
        """Create these names in ``folder``, with the contents that were flushed or with all that was written."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path, file in sorted(names.items()):
            place = folder / path.relative_to("/")
            if file is None:
                place.mkdir(parents=True, exist_ok=True)
            elif place.parent.is_dir() or path.parent not in self.seen:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.contents(is_flushed))

    def _flush_directory(self, directory: Path) -> None:
        for path in [path for path in self.flushed if path.parent == directory]:
            del self.flushed[path]
        self.flushed |= {path: file for path, file in self.seen.items() if path.parent == directory}

    def _file(self, path: Path) -> _File:
        file = self.seen[path]
        assert file is not None
        return file


def ends(calls: list[Call], folder: Path) -> Iterator[int]:
    """Yield the number of calls done, with ``folder`` as it would be if everything ended after them.

    There are three ends. The power is cut, and what was not flushed is lost. Or it is cut, and all names and removals
    have reached the disk, but not the contents. Or the writer is killed, and nothing is lost. An end that leaves the
    same as an earlier one is skipped.
    """
    disk = Disk()
    left: set[int] = set()
    for done, call in enumerate(calls, 1):
        disk.do(call)
        for names, is_flushed in ((disk.flushed, True), (disk.seen, True), (disk.seen, False)):
            contents = hash(frozenset((path, file and file.contents(is_flushed)) for path, file in names.items()))
            if contents not in left:
                left.add(contents)
                disk.leave(folder, names, is_flushed=is_flushed)
                yield done
