"""How much memory snapshots may still take, before the kernel would kill somebody for it."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

_RESERVE_BYTES = 64 << 20
_RESERVE_PART = 20
"""At most one in so many bytes of a small file system is held back."""
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Room:
    """The tightest of the limits on memory."""

    free_bytes: int
    limit: str
    """What is that tight, for a message."""
    fix: str


def memory_room(shm_directory: Path) -> Room:
    """Return the room for snapshots in ``shm_directory``, a memory file system; raises OSError if it is not there.

    A tmpfs may promise more than the node, or the container, has.
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
    """Return what the memory limits (cgroup v2) from ``cgroup`` up to ``top`` leave; None: there are none.

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
        return ""  # no such limit, or hidden from us
