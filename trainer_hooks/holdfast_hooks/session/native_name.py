"""Shows the hooks' own threads to the kernel by name."""

import contextlib
import threading
from pathlib import Path


def show_name() -> None:
    """Give the calling thread the name towards the kernel that it has in Python; the kernel keeps 15 bytes of it.

    Threads that it starts inherit the name, so those of its gRPC channel are known as the hooks', too. The agent does
    not take what they do for the rank's work. Where there is no /proc, nothing happens.
    """
    with contextlib.suppress(OSError):
        Path("/proc/thread-self/comm").write_text(threading.current_thread().name)
