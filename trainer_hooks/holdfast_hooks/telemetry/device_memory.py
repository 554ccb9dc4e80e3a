"""How much memory a rank uses, and how much it may use."""

import functools
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast_base.files import ProcFile
from holdfast_hooks.telemetry.own_device import OwnDevice
from holdfast_proto.v1.session_pb2 import MemoryStatus

_PART_OF_GPU = " MIG "
"""Part of the name of such a device: ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``."""


class RankMemory:
    """Memory of the device on which a rank computes, as soon as that is known."""

    def __init__(self, device: OwnDevice) -> None:
        self._device = device
        self._cpu = CpuMemory()
        self._gpu: CudaMemory | None = None

    def status(self) -> MemoryStatus:
        """Return the memory in use now, without waiting for the device; zeros while the device is not known."""
        gpu = self._of_gpu()
        if gpu is not None:
            return gpu.status()
        return self._cpu.status() if self._device.name not in ("", "cuda") else MemoryStatus()

    def uuid(self) -> str:
        """Return the UUID of the GPU; "" without one, and before the rank first uses it."""
        gpu = self._of_gpu()
        return gpu.uuid() if gpu is not None else ""

    def _of_gpu(self) -> "CudaMemory | None":
        index = self._device.gpu
        if index is None:
            return None
        if self._gpu is None or self._gpu.index != index:
            self._gpu = CudaMemory(index)
        return self._gpu


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


class CudaMemory:
    """Memory of a rank that computes on a GPU: that of torch's caching allocator.

    Statistics and properties are read by the GPU's index. Neither call creates a CUDA context, as cudaMemGetInfo would.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._uuid = ""

    def status(self) -> MemoryStatus:
        """Return the allocator's statistics and the size of the device; zeros before the rank first uses the GPU."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return MemoryStatus()
        statistics = torch.cuda.memory_stats(self.index)
        return MemoryStatus(
            allocated_bytes=statistics.get("allocated_bytes.all.current", 0),
            reserved_bytes=statistics.get("reserved_bytes.all.current", 0),
            alloc_retries=statistics.get("num_alloc_retries", 0),
            ooms=statistics.get("num_ooms", 0),
            limit_bytes=torch.cuda.get_device_properties(self.index).total_memory,
        )

    def uuid(self) -> str:
        """Return the UUID as nvidia-smi shows it; "" before the rank first uses the GPU.

        The driver names a part of a GPU (MIG) by its own UUID, and shows in the name of the device that it is one.
        """
        torch = sys.modules.get("torch")
        if not self._uuid and torch is not None and torch.cuda.is_initialized():
            properties = torch.cuda.get_device_properties(self.index)
            kind = "MIG" if _PART_OF_GPU in properties.name else "GPU"
            self._uuid = f"{kind}-{properties.uuid}"
        return self._uuid


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
