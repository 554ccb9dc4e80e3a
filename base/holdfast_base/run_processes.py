"""Identifies processes across reuse of pids, finds those of a run, and ends them."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.processes import environment, is_alive, send_signal, start_ticks


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""

    def is_alive(self) -> bool:
        """Whether it still runs (a zombie does not)."""
        return is_alive(self.pid, self.start_ticks)

    def signal(self, number: signal.Signals) -> bool:
        """Signal it, and no later process with its pid. Returns whether it was there."""
        return send_signal(self.pid, self.start_ticks, number)


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process that has ``pid`` now, or None if there is none."""
    ticks = start_ticks(pid)
    return ProcessIdentity(pid, ticks) if ticks else None


def marked_processes(variable: str, value: str) -> Iterator[ProcessIdentity]:
    """Yield every process of this user that was started with ``variable=value`` in its environment.

    Forked children carry the environment of the program they were forked from, so that workers which
    no record names are found too.
    """
    marker = f"{variable}={value}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            identity = identify(int(entry.name))
            is_marked = marker in environment(int(entry.name))
            # Looked at again: else the environment might be that of an earlier process with this pid.
            if identity is not None and is_marked and identity == identify(identity.pid) and _is_ours(entry):
                yield identity


def _is_ours(process: Path) -> bool:
    return process.stat().st_uid == os.geteuid()


def kill_all(processes: Iterable[ProcessIdentity], patience_s: float = 5.0) -> int:
    """SIGKILL those that still run and wait until they are gone. Returns how many there were."""
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.signal(signal.SIGKILL)
    deadline = time.monotonic() + patience_s
    while any(process.is_alive() for process in alive) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(alive)


def end_process(process: subprocess.Popen[bytes], patience_s: float, end_signal: signal.Signals) -> int:
    """Send a child ``end_signal``; SIGKILL it after ``patience_s``. Returns its exit code."""
    if process.poll() is None:
        process.send_signal(end_signal)
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
