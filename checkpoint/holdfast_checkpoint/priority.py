"""Lowers the priority of background work, so that ranks get the cores and the disk first."""

import contextlib
import os
import threading
from pathlib import Path

import psutil

_NICENESS = 10
"""Niceness of work that must still advance while ranks use all cores."""
_LOWEST_NICENESS = 19


def lower_priority() -> None:
    """Make the calling thread yield the CPU to the ranks (niceness 10)."""
    thread = threading.get_native_id()
    # Only root may lower a niceness, so one that is higher already stays.
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


def raise_priority(pid: int) -> bool:
    """Give a process of one thread, which has used idle time only, niceness 10. Return whether the kernel allows it.

    It allows root, and other users whose RLIMIT_NICE is high enough (``ulimit -e 10``).
    """
    try:
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    except (PermissionError, ProcessLookupError):
        return False
    with contextlib.suppress(OSError, psutil.Error):
        psutil.Process(pid).ionice(psutil.IOPRIO_CLASS_NONE)
    return True


def cpu_times_s(pid: int) -> tuple[float, float]:
    """Return the seconds that a process of one thread has run, and that it has waited for a core, ready to run.

    Zeros if the process is gone or the kernel does not count this (schedstat in proc(5)).
    """
    try:
        ran_ns, waited_ns, _ = map(int, Path(f"/proc/{pid}/schedstat").read_text().split())
    except OSError:
        return 0.0, 0.0
    return ran_ns / 1e9, waited_ns / 1e9


def use_idle_time() -> None:
    """Make this process, which has one thread, use only CPU and disk time that no other process wants.

    If the kernel does not allow that, the process gets the lowest share of both.
    """
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST_NICENESS)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError, psutil.AccessDenied):  # not every kernel has classes for the disk
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
