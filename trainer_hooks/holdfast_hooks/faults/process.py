"""Faults that end, stop or mislead the process."""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast_hooks.faults.fault import Fault, Site

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


class ClockJump:
    """Moves the wall clock of this process's Python code by ``duration_s``, back if negative, until it is ended.

    It replaces ``time.time`` and ``time.time_ns`` in every module that holds them. C extensions, and with them
    ``datetime.now``, still see the system's clock. Monotonic clocks never jump.
    """

    def __init__(self, fault: Fault, _: Site) -> None:
        self._jump_s = fault.duration_s
        read_s, read_ns = time.time, time.time_ns

        def jumped_s() -> float:
            return read_s() + self._jump_s

        def jumped_ns() -> int:
            return read_ns() + round(self._jump_s * 1e9)

        self._replaced: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
            (read_s, jumped_s),
            (read_ns, jumped_ns),
        ]
        for original, jumped in self._replaced:
            _replace_everywhere(original, jumped)

    def moment(self, step: int, phase: int) -> bool:  # noqa: ARG002 - the protocol of effects
        """Return False: it never ends by itself."""
        return False

    def end(self) -> None:
        """Set the clock right, also for code that has wrapped the replaced functions since."""
        self._jump_s = 0.0
        for original, jumped in self._replaced:
            _replace_everywhere(jumped, original)


def _replace_everywhere(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for module in list(sys.modules.values()):
        # Some modules create an attribute when it is read, so look only into their dict.
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)
