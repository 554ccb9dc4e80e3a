"""The temporary folder of a watch. A watch that was killed leaves it behind, and the next one removes it.

A folder is removed only if it is certain that a watch of this user made it here, and that nothing uses it any more.
Each folder holds a file that names the machine, its namespace of pids and the process.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast_base.run_processes import ProcessIdentity, identify, marked_processes

PREFIX = "holdfast-watch-"
OWNER = "watch.json"
"""Name of the file that says who uses the folder."""

_VARIABLE = "HOLDFAST_WATCH_FOLDER"
"""All processes that a watch starts have its folder in this variable."""


@contextmanager
def watch_folder() -> Iterator[Path]:
    """Yield a new folder, and remove it at the end, which no signal interrupts. First remove those left behind."""
    remove_leftovers(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    os.environ[_VARIABLE] = str(folder)
    try:
        process = identify(os.getpid())
        if process is not None:
            (folder / OWNER).write_text(json.dumps({**_here(), "pid": process.pid, "ticks": process.start_ticks}))
        yield folder
    finally:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove the folders below ``parent`` whose watch, and all that it started, have ended."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_private(folder) and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_private(folder: Path) -> bool:
    """Whether only this user can have written into the folder."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _is_left(folder: Path) -> bool:
    """Whether the folder's watch has certainly ended, with all its processes. Raises OSError."""
    try:
        owner = json.loads((folder / OWNER).read_text())
        process = ProcessIdentity(int(owner["pid"]), int(owner["ticks"]))
        is_here = {name: owner[name] for name in _here()} == _here()
    except (ValueError, TypeError, KeyError):
        return False
    return is_here and not process.is_alive() and not any(marked_processes(_VARIABLE, str(folder)))


def _here() -> dict[str, Any]:
    """Return what tells where a pid means the same process: another machine or container may share the folder."""
    return {"host": socket.gethostname(), "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino}
