"""Removes the temporary files of writers that died.

Only those of this host: whether a process of another host lives cannot be seen from here, and its own agent removes
them when it starts.
"""

import contextlib
import os
from pathlib import Path

import psutil

from holdfast_base.processes import process_state
from holdfast_checkpoint.format.durable import remove_file, writer_of


def remove_leftovers(directory: Path) -> int:
    """Remove the temporary files that dead processes of this host left in ``directory``; return how many.

    Raises OSError if the directory cannot be read or a file not be removed.
    """
    leftovers = [path for path in directory.iterdir() if _is_leftover(path)]
    for path in leftovers:
        remove_file(path)
    return len(leftovers)


def _is_leftover(path: Path) -> bool:
    pid = writer_of(path.name)
    if pid is None:
        return False
    if pid != os.getpid():
        return process_state(pid) in ("", "Z", "X")
    # In a container the next agent often has the pid of the last one. A file that is older than this process is not
    # one of its own.
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime < psutil.Process().create_time()
    return False
