"""Names a thread for the kernel."""

import contextlib
import threading
from pathlib import Path


def show_name() -> None:
    """Show the kernel the name that the calling thread has in Python. The kernel keeps 15 bytes of it.

    Threads that this one starts inherit the name, so the threads of its gRPC channel count as the hooks' too. By the
    name the agent can tell their work from the rank's. Without /proc this does nothing.
    """
    with contextlib.suppress(OSError):
        Path("/proc/thread-self/comm").write_text(threading.current_thread().name)
