"""Faults that end or stop the process."""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

from holdfast_hooks.faults.effect import Site
from holdfast_hooks.faults.fault import Fault

_ROOM_BYTES = 256 << 20
_CHUNK_BYTES = 8 << 20


def kill(_: Fault, __: Site) -> None:
    """Send SIGKILL to this process, which ends immediately."""
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(_: Fault, __: Site) -> None:
    """Read address 0."""
    ctypes.string_at(0)


def stop(_: Fault, __: Site) -> None:
    """Send SIGSTOP to this process: every thread stops until another process sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def raise_exception(fault: Fault, _: Site) -> None:
    """Raise RuntimeError out of the hooks."""
    raise RuntimeError(f"injected fault: exception of rank {fault.rank}")


def exit_0(_: Fault, __: Site) -> None:
    """Leave like a script that calls sys.exit() too early."""
    sys.exit(0)


def out_of_memory(_: Fault, __: Site) -> None:
    """Lower the limit, so that the machine is safe, and allocate until that raises MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + _ROOM_BYTES
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    hoard: list[bytearray] = []
    try:
        while len(hoard) * _CHUNK_BYTES < 2 * _ROOM_BYTES:  # in case the kernel does not enforce the limit
            hoard.append(bytearray(_CHUNK_BYTES))
    finally:
        hoard.clear()
        resource.setrlimit(resource.RLIMIT_DATA, before)
    raise MemoryError("injected fault: out-of-memory, on a kernel that does not keep RLIMIT_DATA")


def _data_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    kibibytes = next((line.split()[1] for line in status.splitlines() if line.startswith("VmData:")), "0")
    return int(kibibytes) << 10
