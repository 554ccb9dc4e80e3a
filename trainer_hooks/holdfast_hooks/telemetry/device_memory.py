"""How much memory a rank uses, and how much it may use."""

import functools
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from holdfast_hooks.proc_file import ProcFile
from holdfast_proto.v1.session_pb2 import MemoryStatus


class DeviceMemory(Protocol):
    """Memory of the device on which a rank computes."""

    def status(self) -> MemoryStatus:
        """Return the memory in use now, without waiting for the device."""

    def uuid(self) -> str:
        """Return the UUID of the GPU; "" without one, and before the rank first uses it."""


class CpuMemory:
    """Memory of a rank that computes on the CPU: the resident set of the process."""

    def __init__(self) -> None:
        self._file = ProcFile("/proc/self/statm")

    def status(self) -> MemoryStatus:
        """Return the resident set size as allocated and reserved bytes, and the most that the process can have."""
        resident_bytes = int(self._file.read().split()[1]) * resource.getpagesize()
        return MemoryStatus(
            allocated_bytes=resident_bytes, reserved_bytes=resident_bytes, limit_bytes=_memory_limit_bytes()
        )

    def uuid(self) -> str:
        """Return no UUID."""
        return ""


class CudaMemory:
    """Memory of a rank that computes on a GPU: that of torch's caching allocator."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._uuid = ""

    def status(self) -> MemoryStatus:
        """Return the allocator's statistics and the size of the device; zeros before the rank first uses the GPU."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return MemoryStatus()
        statistics = torch.cuda.memory_stats(self._name)
        return MemoryStatus(
            allocated_bytes=statistics.get("allocated_bytes.all.current", 0),
            reserved_bytes=statistics.get("reserved_bytes.all.current", 0),
            alloc_retries=statistics.get("num_alloc_retries", 0),
            ooms=statistics.get("num_ooms", 0),
            limit_bytes=torch.cuda.get_device_properties(self._name).total_memory,
        )

    def uuid(self) -> str:
        """Return the UUID as nvidia-smi and dcgm-exporter show it; "" before the rank first uses the GPU."""
        torch = sys.modules.get("torch")
        if not self._uuid and torch is not None and torch.cuda.is_initialized():
            self._uuid = f"GPU-{torch.cuda.get_device_properties(self._name).uuid}"
        return self._uuid


def memory_of(name: str) -> DeviceMemory:
    """Return the memory of the device that torch calls ``cpu``, ``cuda`` or ``cuda:N``."""
    return CudaMemory(name) if name.startswith("cuda") else CpuMemory()


@functools.cache
def _memory_limit_bytes() -> int:
    try:
        return memory_limit_bytes()
    except (OSError, ValueError):
        return 0


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Return the smallest of the limits of this process's control groups (v1 or v2) and the machine's memory.

    ``root`` is where proc and sys are mounted. Raises OSError or ValueError if the kernel does not show the limits.
    """
    files = _limit_files(root / "sys/fs/cgroup", (root / "proc/self/cgroup").read_text())
    texts = [file.read_text().strip() for file in files if file.is_file()]
    limits = [int(text) for text in texts if text != "max"]
    return min([_machine_bytes((root / "proc/meminfo").read_text()), *limits])


def _machine_bytes(meminfo: str) -> int:
    (line,) = [line for line in meminfo.splitlines() if line.startswith("MemTotal:")]
    return int(line.split()[1]) * 1024


def _limit_files(mount: Path, groups: str) -> Iterator[Path]:
    """Yield the files that may hold a limit, from the lines ``id:controllers:path`` of /proc/self/cgroup."""
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
