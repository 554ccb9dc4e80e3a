"""The few things the hooks ask of a device."""

import resource
import sys
from pathlib import Path
from typing import Protocol

from holdfast_proto.v1.session_pb2 import MemoryStatus


class Device(Protocol):
    """Where a rank computes."""

    def memory(self) -> MemoryStatus:
        """Return the memory in use now. Does not wait for the device."""


class CpuDevice:
    """A rank that computes on the CPU: its memory is the process's resident set."""

    def memory(self) -> MemoryStatus:
        """Return the resident set size as allocated bytes."""
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return MemoryStatus(allocated_bytes=resident_pages * resource.getpagesize())


class CudaDevice:
    """A rank that computes on a GPU: its memory is that of torch's caching allocator."""

    def __init__(self, name: str) -> None:
        self._name = name

    def memory(self) -> MemoryStatus:
        """Return the allocator's statistics, zeros before the rank first used the GPU."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return MemoryStatus()
        statistics = torch.cuda.memory_stats(self._name)
        return MemoryStatus(
            allocated_bytes=statistics.get("allocated_bytes.all.current", 0),
            reserved_bytes=statistics.get("reserved_bytes.all.current", 0),
            alloc_retries=statistics.get("num_alloc_retries", 0),
            ooms=statistics.get("num_ooms", 0),
        )


def device_named(name: str) -> Device:
    """Return the device of torch's name ``cpu``, ``cuda`` or ``cuda:N``."""
    return CudaDevice(name) if name.startswith("cuda") else CpuDevice()
