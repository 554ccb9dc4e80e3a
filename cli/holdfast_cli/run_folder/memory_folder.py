"""The folder of a run's snapshots in memory, and the removal of those that dead runs have left."""

import fcntl
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from holdfast_base.run_processes import marked_processes
from holdfast_cli.errors import SettingsError
from holdfast_cli.run_folder.sweep import MARKER

_NAME = re.compile(r"holdfast-(?P<uid>\d+)-[^@]+-(?P<instance>[0-9a-f]{16})")
"""Folder of one instance of a run. An agent that no run supervises keeps its own for the next agent: it has an @."""


class MemoryFolder:
    """Creates the folder for the snapshots of one instance of a run, and holds it by an flock.

    The kernel releases the lock when the holder dies, however it dies. The folder then stays, and so may gigabytes of
    snapshots, because only another start in the same run folder knows of them. So each start removes the folders of
    this user that nobody holds and no process uses.

    Raises SettingsError if the folder cannot be made.
    """

    def __init__(self, shm_directory: Path, run: str, instance: str) -> None:
        # The instance is part of its name, because a run of this name may exist under another --directory.
        self.path = shm_directory.absolute() / f"holdfast-{os.geteuid()}-{run}-{instance}"
        try:
            _remove_abandoned(shm_directory)
            self._descriptor = self._make()
        except OSError as error:
            raise SettingsError(
                f"--shm-directory {shm_directory}: {error.strerror}: name a memory file system that you can write to"
            ) from None

    def release(self) -> None:
        """Release the folder. Another start may remove it from now on."""
        os.close(self._descriptor)

    def _make(self) -> int:
        while True:
            self.path.mkdir(mode=0o700)
            with suppress(FileNotFoundError):  # another start has removed it before it was locked
                descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self.path.exists():
                    return descriptor
                os.close(descriptor)


def _remove_abandoned(shm_directory: Path) -> None:
    for path in shm_directory.iterdir():
        name = _NAME.fullmatch(path.name)
        if name is not None and int(name["uid"]) == os.geteuid():
            with suppress(OSError):  # it is held, or has just gone
                _remove_unless_held(path, name["instance"])


def _remove_unless_held(path: Path, instance: str) -> None:
    """Remove a folder of this user. Raises OSError if another process holds it, or if it is no folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Ranks may outlive both their supervisor and their agent, and still write snapshots.
        if os.fstat(descriptor).st_uid == os.geteuid() and not any(marked_processes(MARKER, instance)):
            shutil.rmtree(path)
    finally:
        os.close(descriptor)
