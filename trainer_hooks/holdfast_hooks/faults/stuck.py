"""Faults that stop the training thread or slow it down, each in another way."""

import ctypes
import os
import tempfile
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic

from holdfast_hooks.faults.fault import Fault, Site
from holdfast_hooks.phases import Phase
from holdfast_hooks.telemetry.timeline import Timeline

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


_SHORTEST_S = 1e-4
"""Shortest time that counts as a pass. The moment between a step's start and its first phase is shorter."""


class SlowPasses:
    """Makes each forward and backward pass take ``factor`` times as long, by computing.

    It adds the time to the phase itself. In a loop that reports no phases, it adds the time to the next step's phase.
    """

    def __init__(self, fault: Fault, site: Site) -> None:
        self._timeline: Timeline = site.timeline
        self._added = fault.factor - 1.0
        self._until_s = monotonic() + fault.duration_s if fault.duration_s else float("inf")
        self._since_s: float | None = None
        self.moment(site.timeline.step, site.timeline.phase)

    def moment(self, step: int, phase: int) -> bool:  # noqa: ARG002 - the protocol of effects
        """Add the missing time to the pass that has just ended."""
        since_s, self._since_s = self._since_s, None
        took_s = 0.0 if since_s is None else monotonic() - since_s
        if took_s > _SHORTEST_S:
            if phase == Phase.FORWARD_BACKWARD:
                _compute(self._added * took_s)
            else:
                self._timeline.enter(Phase.FORWARD_BACKWARD)  # to which the time belongs
                _compute(self._added * took_s)
                self._since_s = None
                self._timeline.enter(phase)
        if phase == Phase.FORWARD_BACKWARD:
            self._since_s = monotonic()
        return monotonic() > self._until_s

    def end(self) -> None:
        """Do nothing: there is nothing to undo."""


def _compute(for_s: float) -> None:
    deadline_s = monotonic() + for_s
    while monotonic() < deadline_s:
        pass
