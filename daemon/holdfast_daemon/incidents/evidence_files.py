"""The files of evidence of an incident: which there are, and one of them opened, without following links."""

import errno
import os
import stat
from pathlib import Path
from typing import IO

MOST_EVIDENCE_FILES = 5000
_WITHIN = "suspicion"
"""Folder with the evidence of the suspicion that came before an incident."""


def evidence_files(folder: Path) -> list[tuple[str, int]]:
    """Return name and bytes of the regular files in an incident's folder and one level below; links are left out."""
    found: list[tuple[str, int]] = []
    for prefix, directory in (("", folder), (f"{_WITHIN}/", folder / _WITHIN)):
        try:
            if directory.is_symlink():
                continue
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and len(found) < MOST_EVIDENCE_FILES:
                        found.append((f"{prefix}{entry.name}", entry.stat(follow_symlinks=False).st_size))
        except OSError:
            continue
    return sorted(found)


def open_evidence(folder: Path, name: str) -> IO[bytes]:
    """Open a file of an incident's evidence. Raises OSError unless :func:`evidence_files` could list it."""
    directory, _, file_name = name.rpartition("/")
    if directory not in ("", _WITHIN) or file_name in ("", ".", "..") or "\0" in name:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    parent = folder / directory if directory else folder
    opened = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.fdopen(os.open(file_name, flags, dir_fd=opened), "rb")
    finally:
        os.close(opened)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is no regular file")
