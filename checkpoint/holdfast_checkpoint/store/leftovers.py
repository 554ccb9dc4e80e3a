"""Removes the temporary files of writers that died."""

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from holdfast_checkpoint.format.durable import remove_file
from holdfast_checkpoint.processes import process_state


def remove_leftovers(directory: Path) -> int:
    """Remove the temporary files in ``directory`` of this host's dead processes; return how many."""
    leftovers = list(_leftovers(directory))
    for path in leftovers:
        remove_file(path)
    return len(leftovers)


def _leftovers(directory: Path) -> Iterator[Path]:
    pattern = re.compile(rf".+\.{re.escape(socket.gethostname())}\.(\d+)\.\d+\.tmp")
    for path in directory.iterdir():
        match = pattern.fullmatch(path.name)
        if match and _is_abandoned(path, int(match[1])):
            yield path


def _is_abandoned(path: Path, pid: int) -> bool:
    if pid != os.getpid():
        return process_state(pid) in ("", "Z", "X")
    # In a container the next agent often has the pid of the last one.
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime < psutil.Process().create_time()
    return False
