"""The few things the hooks ask of a device."""

import functools
import resource
import sys
from pathlib import Path
from typing import Protocol

from holdfast_hooks.telemetry.memory_limit import memory_limit_bytes
from holdfast_proto.v1.session_pb2 import MemoryStatus


class DeviceMemory(Protocol):
    """Where a rank computes."""

    def status(self) -> MemoryStatus:
        """Return the memory in use now. Does not wait for the device."""


class CpuMemory:
    """A rank that computes on the CPU: its memory is the process's resident set."""

    def status(self) -> MemoryStatus:
        """Return the resident set size as allocated and reserved bytes, and what the process can have at most."""
        resident_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        return MemoryStatus(
            allocated_bytes=resident_bytes, reserved_bytes=resident_bytes, limit_bytes=_memory_limit_bytes()
        )


class CudaMemory:
    """A rank that computes on a GPU: its memory is that of torch's caching allocator."""

    def __init__(self, name: str) -> None:
        self._name = name

    def status(self) -> MemoryStatus:
        """Return the allocator's statistics and the device's size, zeros before the rank first used the GPU."""
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


def memory_of(name: str) -> DeviceMemory:
    """Return the device of torch's name ``cpu``, ``cuda`` or ``cuda:N``."""
    return CudaMemory(name) if name.startswith("cuda") else CpuMemory()


@functools.cache
def _memory_limit_bytes() -> int:
    try:
        return memory_limit_bytes()
    except (OSError, ValueError):
        return 0
