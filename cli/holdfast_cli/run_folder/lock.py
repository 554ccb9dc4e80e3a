"""Makes sure that one run has one supervisor."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from holdfast_cli.errors import CommandError


class RunLock:
    """An flock on ``run.lock`` in the run's directory. The kernel releases it when its holder dies; the file stays.

    Raises CommandError if another process holds it.
    """

    def __init__(self, run_directory: Path, run: str) -> None:
        self._descriptor = os.open(run_directory / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip() or "?"
            os.close(self._descriptor)
            raise CommandError(
                f"run {run} is already running (pid {holder}): choose another --run "
                f"or stop it with `holdfast stop --run {run} --directory {run_directory.parent}`"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
