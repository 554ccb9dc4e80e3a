"""How much memory a process can have at most: what its control groups allow, or all that the machine has."""

from collections.abc import Iterator
from pathlib import Path


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Return the smallest of the limits of this process's control groups (v1 or v2) and the machine's memory.

    Raises OSError or ValueError if the kernel does not tell. ``root``: where proc and sys are mounted.
    """
    files = _limit_files(root / "sys/fs/cgroup", (root / "proc/self/cgroup").read_text())
    texts = [file.read_text().strip() for file in files if file.is_file()]
    limits = [int(text) for text in texts if text != "max"]
    return min([_machine_bytes((root / "proc/meminfo").read_text()), *limits])


def _machine_bytes(meminfo: str) -> int:
    (line,) = [line for line in meminfo.splitlines() if line.startswith("MemTotal:")]
    return int(line.split()[1]) * 1024


def _limit_files(mount: Path, groups: str) -> Iterator[Path]:
    """Yield where limits may be, given the lines ``id:controllers:path`` of /proc/self/cgroup."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = mount, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = mount / "memory", "memory.limit_in_bytes"
        else:
            continue
        # A limit on a group holds for all groups below it.
        place = Path(path)
        for ancestor in (place, *place.parents):
            yield base / ancestor.relative_to("/") / name
