"""Finds the memory cgroup of a process, and counts the processes that were killed there to free memory."""

import functools
import re
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def memory_events(pid: int | None = None) -> Path | None:
    """Return the file in which the kernel counts the out-of-memory kills of a process's cgroup, or None without one.

    cgroup v2 calls it ``memory.events``, v1 ``memory.oom_control``. ``pid``: None for this process.
    """
    try:
        return _events_of(Path(f"/proc/{pid or 'self'}/cgroup").read_text())
    except OSError:
        return None


@functools.lru_cache(maxsize=64)
def _events_of(cgroups: str) -> Path | None:
    candidates = [path for line in cgroups.splitlines() if (path := _events_file(line)) is not None]
    return next((path for path in candidates if path.exists()), None)


def oom_kills(text: str) -> int:
    """Return how many processes of the cgroup were killed to free memory; 0 if ``text`` does not say."""
    found = _OOM_KILLS.search(text)
    return int(found[1]) if found else 0


def _events_file(line: str) -> Path | None:
    """``line``: ``hierarchy:controllers:path`` of /proc/self/cgroup."""
    _, controllers, path = (*line.split(":", 2), "", "")[:3]
    if not path:
        return None
    if not controllers:
        return _MOUNT / path.lstrip("/") / "memory.events"
    if "memory" in controllers.split(","):
        return _MOUNT / "memory" / path.lstrip("/") / "memory.oom_control"
    return None


class KillCount:
    """Counts the kernel's kills in one cgroup after this object was created. Each kill explains one rank's end."""

    def __init__(self, events: Path) -> None:
        """``events``: file from :func:`memory_events`."""
        self._events = events
        self._count = self._read(otherwise=0)
        self._unclaimed = 0

    def claim(self) -> str:
        """Claim a kill that explains no other end; return the kernel's count as evidence, or "" if there is none."""
        before, self._count = self._count, self._read(otherwise=self._count)
        self._unclaimed += max(0, self._count - before)
        if not self._unclaimed:
            return ""
        self._unclaimed -= 1
        return f"{self._events}: oom_kill {self._count}"

    def _read(self, *, otherwise: int) -> int:
        try:
            return oom_kills(self._events.read_text())
        except OSError:  # the cgroup was removed, and its count with it
            return otherwise
