"""What Linux tells about a process, and how to end one for sure."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


class AgentError(Exception):
    """The agent cannot go on; the message is one line for people."""


def become_subreaper() -> None:
    """Adopt the orphans of our descendants: if the warm parent dies, its ranks can still be reaped here."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (state) on, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a program may be called anything
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def process_state(pid: int) -> str:
    """Return R, S, D, T, t or Z as proc(5) has it; empty if there is no such process."""
    fields = stat_fields(pid)
    return fields[0] if fields else ""


def start_ticks(pid: int) -> int:
    """Return when the process started, in clock ticks since boot; 0 if there is none.

    Together with the pid it names a process for good: pids are used again.
    """
    fields = stat_fields(pid)
    return int(fields[19]) if fields else 0


def is_alive(pid: int, ticks: int) -> bool:
    """Whether the very process that started at ``ticks`` still runs (a zombie does not)."""
    fields = stat_fields(pid)
    return fields is not None and int(fields[19]) == ticks and fields[0] not in "ZX"


def failure_of_zombie(pid: int, ticks: int) -> int | None:
    """Return the wait status of a process that has failed and that its parent, not us, has yet to reap.

    None: it is reaped, or it runs, or its status is 0, which is also what the kernel shows to whom it tells nothing.
    """
    fields = stat_fields(pid)
    if fields is None or int(fields[19]) != ticks or fields[0] != "Z":
        return None
    return int(fields[49]) or None


def kill_session(pid: int) -> None:
    """SIGKILL a process that leads its session, and its process group."""
    kill_group(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """SIGKILL what a process that led its session has started (data-loader workers); it may be gone itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def reap(pid: int) -> int | None:
    """Return the wait status of an exited child of ours, or None if it runs or is not our child."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if reaped == pid else None
