"""Clocks and units that the measurements share."""

import statistics
import time
from collections.abc import Callable

import torch

CYCLES_PER_S = 1.0e9
"""Cycles of a second of work. GPUs of data centres run at 1 to 2 GHz: a kernel lasts half to all of what was asked."""


def busy_for(seconds: float, device: str) -> None:
    """Keep the device busy: on a GPU by a kernel on the current stream, on a CPU by sleeping in this thread."""
    if device == "cuda":
        torch.cuda._sleep(int(seconds * CYCLES_PER_S))  # type: ignore[no-untyped-call]
    else:
        time.sleep(seconds)


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def median_us(call: Callable[[], object], *, times: int) -> float:
    """Return the median duration of a call in us."""
    taken = []
    for _ in range(times):
        began_ns = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - began_ns) / 1000)
    return statistics.median(taken)


def us(value: float) -> str:
    """Return microseconds with their unit."""
    return f"{value:.1f} us" if value < 1000 else f"{value / 1000:.2f} ms"


def mib(nbytes: float) -> str:
    """Return bytes as MiB."""
    return f"{nbytes / 2**20:.1f} MiB"
