"""What /proc tells about a process, and ending one for certain."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""

    def is_alive(self) -> bool:
        """Whether it still runs (a zombie does not)."""
        fields = _stat_fields(self.pid)
        return fields is not None and int(fields[19]) == self.start_ticks and fields[0] not in "ZX"


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process that has ``pid`` now, or None if there is none."""
    fields = _stat_fields(pid)
    return None if fields is None else ProcessIdentity(pid, int(fields[19]))


def process_state(pid: int) -> str:
    """Return the letter of /proc/PID/stat (R S D T t Z), or "" if there is no such process."""
    fields = _stat_fields(pid)
    return "" if fields is None else fields[0]


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
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                identity = identify(int(entry.name))
                if identity is not None:
                    yield identity


def kill_all(processes: Iterable[ProcessIdentity], patience_s: float = 5.0) -> int:
    """SIGKILL those that still run and wait until they are gone. Returns how many there were."""
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + patience_s
    while any(process.is_alive() for process in alive) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(alive)


def end_process(process: subprocess.Popen[bytes], patience_s: float) -> int:
    """SIGTERM a child; SIGKILL it after ``patience_s``. Returns its exit code."""
    if process.poll() is None:
        process.terminate()
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def _stat_fields(pid: int) -> list[str] | None:
    """Fields 3 and on of /proc/PID/stat: those after the command's name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
