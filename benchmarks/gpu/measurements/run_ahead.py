"""How far the host runs ahead of the GPU, and what the recorder shows: newest enqueued against oldest not retired."""

import threading
import time

import torch
import torch.distributed as dist

from benchmarks.gpu.measurements.recorder import Dump, entries_of, status_of, world_of_one
from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.timing import busy_for, synchronize

_BUSY_S = 3.0
_MOST_CALLS = 1500
_BLOCKED_S = 0.05
"""A launch that takes longer found the queue full."""


class Samples:
    """Polls the recorder's status, as the reporter thread does."""

    def __init__(self, dump: Dump) -> None:
        self.ahead: list[int] = []
        """Calls that were enqueued and not completed, by the status."""
        self._dump = dump
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Poll no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            status = status_of(self._dump)
            self.ahead.append(status["last_enqueued_collective"] - status["last_completed_collective"])


def measure(device: str) -> Outcome:
    """Enqueue calls behind a long kernel until the queue is full, or enough are enqueued."""
    with world_of_one(device) as dump:
        value = torch.ones(1024, device=device)
        for _ in range(20):
            dist.all_reduce(value)
        synchronize(device)
        samples = Samples(dump)
        busy_for(_BUSY_S if device == "cuda" else 0.1, device)
        enqueued, longest_s, took_s = _enqueue(value)
        not_retired = [entry for entry in entries_of(dump) if not entry["retired"]]
        newest = status_of(dump)["last_enqueued_collective"]
        synchronize(device)
        time.sleep(0.5)  # the watchdog looks ten times a second
        samples.stop()
        left = sum(not entry["retired"] for entry in entries_of(dump))
    figures = {
        "calls enqueued behind a long kernel": str(enqueued),
        "in": f"{took_s:.2f} s",
        "longest launch": f"{longest_s * 1000:.1f} ms",
        "oldest call not retired": str(min((one["collective_seq_id"] for one in not_retired), default="none")),
        "newest call enqueued": str(newest),
        "most calls ahead by the status": str(max(samples.ahead, default=0)),
    }
    checks = [Check("half a second after the GPU is done, every call is retired", left == 0, f"{left} are not")]
    if device == "cuda":
        # The entries are read after the last launch. If that launch found the queue full, the kernel has ended by then.
        ahead = max(samples.ahead, default=0)
        checks.append(Check("the status shows the calls ahead", ahead >= enqueued - 1, f"{ahead} of {enqueued}"))
    return Outcome.of(figures, checks)


def _enqueue(value: torch.Tensor) -> tuple[int, float, float]:
    """Return the number of calls, the duration of the longest launch, and of all."""
    began_s = time.monotonic()
    longest_s = 0.0
    enqueued = 0
    while enqueued < _MOST_CALLS and longest_s <= _BLOCKED_S:
        launch_s = time.monotonic()
        value.mul_(1.0)
        dist.all_reduce(value)
        longest_s = max(longest_s, time.monotonic() - launch_s)
        enqueued += 1
    return enqueued, longest_s, time.monotonic() - began_s
