"""What a rank's training thread is doing, as the kernel tells: costs the rank nothing."""

import errno
import os
from dataclasses import dataclass

NO_SYSTEM_CALL = -1

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True)
class ThreadStatus:
    """The main thread of a process, which is where ranks train."""

    busy_s: float = 0.0
    """So far: computing, or ready to compute and waiting for a core; 0 if the kernel does not tell."""
    state: str = ""
    """R, S, D, T, t or Z as proc(5) has it; empty if the thread is gone."""
    syscall: int = NO_SYSTEM_CALL
    """Number of the system call that it is in; -1 if it is in none, or if we may not know."""


def look_at(pid: int) -> ThreadStatus:
    """Return the status of the main thread of ``pid`` now. Raises OSError if we are out of descriptors."""
    folder = f"/proc/{pid}/task/{pid}"
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
