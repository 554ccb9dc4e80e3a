"""The memory cgroup that this process, and with it its ranks, is in."""

import re
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def memory_events() -> Path | None:
    """Return the file in which the kernel counts the cgroup's out-of-memory kills, or None if there is none.

    cgroup v2 calls it ``memory.events``, v1 ``memory.oom_control``.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    candidates = [path for line in lines if (path := _events_file(line)) is not None]
    return next((path for path in candidates if path.exists()), None)


def oom_kills(text: str) -> int:
    """Return how many processes of the cgroup were killed to free memory; 0 if ``text`` does not tell."""
    found = _OOM_KILLS.search(text)
    return int(found[1]) if found else 0


def _events_file(line: str) -> Path | None:
    """``line``: ``hierarchy:controllers:path`` of /proc/self/cgroup."""
    _, controllers, path = line.split(":", 2)
    if not controllers:
        return _MOUNT / path.lstrip("/") / "memory.events"
    if "memory" in controllers.split(","):
        return _MOUNT / "memory" / path.lstrip("/") / "memory.oom_control"
    return None
