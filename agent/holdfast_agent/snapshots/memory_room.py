"""Measures how much memory snapshots may still take before the kernel would kill a process to free memory."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

_RESERVE_BYTES = 64 << 20
_RESERVE_PART = 20
"""The reserve is at most one N-th of the file system."""
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Room:
    """The tightest limit on memory."""

    free_bytes: int
    limit: str
    """Name of the limit, for a message."""
    fix: str
    """Advice how to raise the limit, for a message."""


@dataclass(frozen=True)
class NoRoom:
    """The reason why snapshots are not kept in memory."""

    reason: str
    needed_bytes: int = 0
    free_bytes: int = 0


def memory_room(shm_directory: Path) -> Room:
    """Return the room for snapshots in ``shm_directory``, a memory file system; raises OSError if it does not exist.

    The size of a tmpfs alone is not enough: it may be larger than the memory of the node or of the container.
    """
    larger = "enlarge it (docker: --shm-size) or set --shm-directory to a larger memory file system"
    more = "give the node more memory or run fewer ranks on it"
    container = "raise the memory limit of the container or unit that the agent runs in"
    rooms = [
        Room(_file_system_free_bytes(shm_directory), f"{shm_directory}", larger),
        Room(psutil.virtual_memory().available, "the node's memory", more),
    ]
    cgroup = cgroup_free_bytes(_own_cgroup(), _CGROUPS)
    if cgroup is not None:
        rooms.append(Room(cgroup, "the agent's memory limit", container))
    return min(rooms, key=lambda room: room.free_bytes)


def cgroup_free_bytes(cgroup: Path, top: Path) -> int | None:
    """Return the bytes that the memory limits (cgroup v2) from ``cgroup`` up to ``top`` leave; None: there is no limit.

    Inactive file pages count as free, as in the kubelet's working set: the kernel drops them before it kills.
    """
    free: list[int] = []
    for level in (cgroup, *cgroup.parents):
        limit = _read(level / "memory.max")
        if limit and limit != "max":
            statistics = dict(line.split() for line in _read(level / "memory.stat").splitlines())
            used = int(_read(level / "memory.current") or 0) - int(statistics.get("inactive_file", 0))
            free.append(max(int(limit) - used, 0))
        if level == top:
            break
    return min(free, default=None)


def sized(nbytes: int) -> str:
    """Return a size for people."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def _file_system_free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    return max(free - min(_RESERVE_BYTES, total // _RESERVE_PART), 0)


def _own_cgroup() -> Path:
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::/"):
            return _CGROUPS / line.removeprefix("0::/")
    return _CGROUPS


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # there is no such limit, or it is hidden
