"""Removes the temporary files of writers that died."""

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil


def remove_leftovers(directory: Path) -> int:
    """Remove the temporary files in ``directory`` of this host's dead processes; return how many."""
    leftovers = list(_leftovers(directory))
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


def _leftovers(directory: Path) -> Iterator[Path]:
    pattern = re.compile(rf".+\.{re.escape(socket.gethostname())}\.(\d+)\.\d+\.tmp")
    for path in directory.iterdir():
        match = pattern.fullmatch(path.name)
        if match and _is_abandoned(path, int(match[1])):
            yield path


def _is_abandoned(path: Path, pid: int) -> bool:
    if pid != os.getpid():
        return not psutil.pid_exists(pid)
    # In a container the next agent often has the pid of the last one.
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime < psutil.Process().create_time()
    return False
