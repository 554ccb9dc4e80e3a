"""Reads the kernel's log: which processes it has killed to free memory, and what drivers say."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

KERNEL_LOG = Path("/dev/kmsg")

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of the kernel. In any other pid namespace, the pids in the kernel's log mean other processes."""

_RECORD_BYTES = 8192
"""Size of the buffer for one record. If a record does not fit, the kernel returns an error instead."""

_VICTIM = re.compile(r"(?:out of memory|oom_kill_allocating_task).*?: Killed process (?P<pid>\d+) \(", re.IGNORECASE)
_CHOICE = re.compile(r"^oom-kill:.*\bpid=(?P<pid>\d+)\b")


def names_our_pids() -> bool:
    """Whether the pids in the kernel's log mean the same processes here: not in a container with pids of its own."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def message_of(record: str) -> str:
    """Return the text of one record of /dev/kmsg: ``priority,number,time,flags;text`` and lines of context."""
    return record.partition(";")[2].partition("\n")[0]


def victim_of(message: str) -> int | None:
    """Return the pid of the process that the kernel kills to free memory; None if the line is about something else."""
    found = _VICTIM.search(message) or _CHOICE.match(message)
    return int(found["pid"]) if found else None


class KernelLog:
    """Reads the messages that the kernel logs after this object was created."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        """Raises OSError if the kernel does not let us read its log."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)

    def new_messages(self) -> Iterator[str]:
        """Yield the messages logged since the last call. Raises OSError if the log can no longer be read."""
        while True:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if (
                    error.errno != errno.EPIPE
                ):  # the kernel has overwritten the oldest records; the next read continues after them
                    raise
                continue
            if not record:
                return
            yield message_of(record.decode(errors="replace"))
