"""Keeps the logs of ranks within bounds: their size while ranks write them, and their number over generations."""

import asyncio
import contextlib
import os
import shutil
import stat
import time
from pathlib import Path

from holdfast_agent.node import Node
from holdfast_base.files import PARTIAL_SUFFIX
from holdfast_base.threads import in_daemon_thread
from holdfast_proto.run_files import GENERATION_FOLDER, GENERATIONS_LOGGED

MOST_LOG_BYTES = 64 * 2**20
"""Size at which a rank's log is emptied: people read its end, and ``holdfast logs`` takes seconds for so much."""
LOOK_EVERY_S = 10.0
"""Pause between two looks at the sizes. In this time, no rank that prints text fills a disk."""
_IN_USE_S = 86_400.0
"""Time since the last line after which a log of another generation is no longer in use."""


def begin_logs(folder: Path) -> None:
    """Create the folder of a generation's logs, as the newest one. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        os.utime(folder)  # an earlier start of the run may have left it


def remove_old_logs(folder: Path) -> None:
    """Remove the logs of old generations next to ``folder``, which stays. Raises OSError if its place cannot be read.

    The age of a folder counts, and not its number: each start of a run numbers its generations anew.
    """
    with os.scandir(folder.parent) as entries:
        found = [
            (entry.stat(follow_symlinks=False).st_mtime, entry.name)
            for entry in entries
            if GENERATION_FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    for _, name in sorted(found, reverse=True)[GENERATIONS_LOGGED:]:
        if name != folder.name and not _is_in_use(folder.parent / name):
            shutil.rmtree(folder.parent / name, ignore_errors=True)


def _is_in_use(folder: Path) -> bool:
    """Return whether a log in the folder was written a short time ago: another run may share the place."""
    since = time.time() - _IN_USE_S
    with os.scandir(folder) as entries:
        return any(entry.stat(follow_symlinks=False).st_mtime > since for entry in entries)


def limit_log(path: Path) -> bool:
    """Move the contents of a log that is too large to ``<log>.1``, and return whether it was. Raises OSError.

    A rank holds the file open, so it is copied and emptied. Ranks append, so they continue at its new beginning. What
    a rank writes between the copy and the emptying is lost.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # the rank has not begun to write
        return False
    with os.fdopen(descriptor, "rb"):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= MOST_LOG_BYTES:
            return False
        partial = path.with_name(f"{path.name}{PARTIAL_SUFFIX}")
        partial.unlink(missing_ok=True)
        try:
            _copy_end(descriptor, status.st_size, partial)
        except OSError:  # a full disk must not get fuller
            partial.unlink(missing_ok=True)
            raise
        partial.replace(path.with_name(f"{path.name}.1"))
        os.ftruncate(descriptor, 0)
    return True


def _copy_end(log: int, size: int, copy: Path) -> None:
    with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        offset, end = size - MOST_LOG_BYTES, size + MOST_LOG_BYTES
        # Up to an end, because a rank may write as fast as this copies.
        while sent := os.sendfile(file.fileno(), log, offset, end - offset):
            offset += sent


async def limit_logs(node: Node) -> None:
    """Look at the logs of a node again and again, in threads, because a disk may hang."""
    tidied = 0
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        generation = node.generation
        with node.errors.contained("rank_logs"):
            if generation > tidied:
                tidied = generation
                folder = node.options.rank_log(generation, 0).parent
                await in_daemon_thread(lambda folder=folder: remove_old_logs(folder))  # type: ignore[misc]
        for rank in list(node.ranks.values()):
            path = node.options.rank_log(rank.generation, rank.rank)
            with node.errors.contained("rank_logs"):
                await in_daemon_thread(lambda path=path: limit_log(path))  # type: ignore[misc]
