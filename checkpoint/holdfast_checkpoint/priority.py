"""Lowers the priority of background work, so that ranks get the cores first."""

import os
import threading

_NICENESS = 10
"""Niceness of background work. Next to ranks that use all cores it still gets about a tenth of one."""


def lower_priority() -> None:
    """Make the calling thread yield the CPU to the ranks (niceness 10)."""
    thread = threading.get_native_id()
    # Only root may lower a niceness, so one that is higher already stays.
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
