"""Reads from the kernel what a rank's training thread does. This costs the rank nothing."""

import errno
import os
from dataclasses import dataclass

NO_SYSTEM_CALL = -1

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True)
class ThreadStatus:
    """Status of one thread of a process: the one in which the rank trains."""

    busy_s: float = 0.0
    """Seconds so far in which it computed or waited for a core; 0 if the kernel does not say."""
    state: str = ""
    """State letter of proc(5): R, S, D, T, t or Z; empty if the thread is gone."""
    syscall: int = NO_SYSTEM_CALL
    """Number of the system call that it is in; -1 if it is in none, or if the kernel hides it."""


def look_at(pid: int, tid: int = 0) -> ThreadStatus:
    """Return the status of a thread of ``pid`` now, by default the main one.

    Raises OSError if no descriptor is free.
    """
    folder = f"/proc/{pid}/task/{tid or pid}"
    return ThreadStatus(
        busy_s=_busy_s(_read(f"{folder}/schedstat")),
        state=_state(_read(f"{folder}/stat")),
        syscall=_syscall(_read(f"{folder}/syscall")),
    )


def _read(path: str) -> str:
    """Return a file of one line, empty if it cannot be read. Several times as fast as Path.read_text()."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _SHORTAGE:  # that says nothing about the thread
            raise
        return ""
    try:
        return os.read(descriptor, 1024).decode(errors="replace")
    except OSError:  # it is gone by now
        return ""
    finally:
        os.close(descriptor)


def _busy_s(schedstat: str) -> float:
    """Parse ``ran_ns waited_ns timeslices``."""
    return sum(int(field) for field in schedstat.split()[:2]) / 1e9


def _state(stat: str) -> str:
    """Parse ``pid (name) state ...``; a name may hold anything."""
    return stat.rpartition(")")[2].strip()[:1]


def _syscall(syscall: str) -> int:
    """Parse ``number arguments...``, ``running``, or ``-1 ...`` of a thread that waits in none."""
    number = syscall.partition(" ")[0]
    return int(number) if number.isdecimal() else NO_SYSTEM_CALL
