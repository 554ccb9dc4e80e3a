"""Keeps background work out of the ranks' way."""

import os
import threading

_NICENESS = 10


def lower_priority() -> None:
    """Make the calling thread yield the CPU to the ranks (niceness 10); for the threads that compress."""
    thread = threading.get_native_id()
    # Only root may lower a niceness, so one that is higher already stays.
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
