"""Faults that stop the training thread, each in another way, for ``duration_s`` or forever."""

import ctypes
import os
import tempfile
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic

from holdfast_hooks.faults.effect import Site
from holdfast_hooks.faults.fault import Fault

_LONGEST_POLL_MS = 1_000_000_000


def infinite_loop(fault: Fault, _: Site) -> None:
    """Compute in Python. Other threads still run."""
    deadline_s = _deadline_s(fault)
    while monotonic() < deadline_s:
        pass


def gil_held(fault: Fault, _: Site) -> None:
    """Wait in C and hold the interpreter's lock, so that no thread of this process runs Python."""
    poll = ctypes.PyDLL(None).poll
    deadline_s = _deadline_s(fault)
    while (left_s := deadline_s - monotonic()) > 0:  # again, if a signal has interrupted it
        poll(None, 0, int(min(1000 * left_s + 1, _LONGEST_POLL_MS)))


def deadlock(fault: Fault, _: Site) -> None:
    """Wait for a lock that another thread holds."""
    lock, held = threading.Lock(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            threading.Event().wait(fault.duration_s or None)

    threading.Thread(target=hold, name="holdfast-fault-holder", daemon=True).start()
    held.wait()
    with lock:
        pass


def data_stall(fault: Fault, _: Site) -> None:
    """Wait for a batch that no thread puts into the queue."""
    batches: SimpleQueue[None] = SimpleQueue()
    try:
        batches.get(timeout=fault.duration_s or None)
    except Empty:
        return


def frozen_disk(fault: Fault, _: Site) -> None:
    """Read from a file that never answers: a FIFO into which no process writes."""
    with tempfile.TemporaryDirectory(prefix="holdfast-fault-") as folder:
        path = Path(folder) / "fifo"
        os.mkfifo(path, 0o600)
        descriptor = os.open(path, os.O_RDWR)  # also as a writer; without one, the open itself would block
    try:
        if fault.duration_s:
            answer = threading.Timer(fault.duration_s, os.write, (descriptor, b"\0"))
            answer.daemon = True
            answer.start()
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def _deadline_s(fault: Fault) -> float:
    return monotonic() + fault.duration_s if fault.duration_s else float("inf")
