"""Lines of the kernel's log that say which process was killed to free memory, and where they are read."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

KERNEL_LOG = Path("/dev/kmsg")

_RECORD_BYTES = 8192
"""The kernel refuses to hand a record to a smaller buffer than it needs."""

_VICTIM = re.compile(r"(?:out of memory|oom_kill_allocating_task).*?: Killed process (?P<pid>\d+) \(", re.IGNORECASE)
_CHOICE = re.compile(r"^oom-kill:.*\bpid=(?P<pid>\d+)\b")


def message_of(record: str) -> str:
    """Return the text of one record of /dev/kmsg: ``priority,number,time,flags;text`` and lines of context."""
    return record.partition(";")[2].partition("\n")[0]


def victim_of(message: str) -> int | None:
    """Return the pid of the process that the kernel says it kills to free memory, None if the line is about else."""
    found = _VICTIM.search(message) or _CHOICE.match(message)
    return int(found["pid"]) if found else None


class KernelLog:
    """Reads what the kernel has logged since this was made."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        """Raises OSError if the kernel does not let us read its log."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def close(self) -> None:
        """Read no more."""
        os.close(self._descriptor)

    def new_messages(self) -> Iterator[str]:
        """Yield the messages logged since the last call. Raises OSError if the log cannot be read any more."""
        while True:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EPIPE:  # we were slow: the oldest records are gone, the next ones follow
                    raise
                continue
            if not record:
                return
            yield message_of(record.decode(errors="replace"))
