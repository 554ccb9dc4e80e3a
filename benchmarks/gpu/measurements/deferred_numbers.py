"""Numbers that a GPU owes: what it costs to leave them behind, and that nobody waits for them."""

import time

import torch

from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.timing import busy_for, median_us, synchronize, us
from holdfast_hooks.telemetry.deferred import DeferredNumbers

_BUSY_S = 1.0
_MOST_WAIT_S = 0.2


def measure(device: str) -> Outcome:
    """Time the calls of the training thread and of the reporter thread."""
    value = torch.ones((), device=device)
    several = tuple(torch.ones((), device=device) for _ in range(8))
    synchronize(device)
    figures = {
        "leave one number behind": us(median_us(lambda: DeferredNumbers.of((value,)), times=500)),
        "leave eight numbers behind": us(median_us(lambda: DeferredNumbers.of(several), times=200)),
    }
    synchronize(device)
    arrived = DeferredNumbers.of((value,))
    synchronize(device)
    figures["read a number that has arrived"] = us(median_us(arrived.read, times=500))
    checks = [_nobody_waits(device), _many_are_read_in_order(device)]
    if device == "cuda":
        figures["event queries while a kernel runs"] = us(_query_us())
    return Outcome.of(figures, checks)


def _nobody_waits(device: str) -> Check:
    if device != "cuda":  # on a CPU there is nothing to wait for
        return Check("nobody waits for a busy device", DeferredNumbers.of((torch.ones(()),)).read() == [1.0])
    busy_for(_BUSY_S, device)
    began_s = time.monotonic()
    numbers = DeferredNumbers.of((torch.ones((), device=device),))
    early = numbers.read()
    waited_s = time.monotonic() - began_s
    synchronize(device)
    held = early is None and waited_s < _MOST_WAIT_S and numbers.read() == [1.0]
    return Check("nobody waits for a busy device", held, f"{waited_s * 1000:.2f} ms behind a kernel of {_BUSY_S:g} s")


def _many_are_read_in_order(device: str) -> Check:
    owed = [DeferredNumbers.of((torch.tensor(float(number), device=device),)) for number in range(2000)]
    synchronize(device)
    read = [numbers.read() for numbers in owed]
    return Check("2,000 owed numbers arrive right", read == [[float(number)] for number in range(2000)])


def _query_us() -> float:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    busy_for(_BUSY_S, "cuda")
    event.record()
    taken = median_us(event.query, times=500)
    synchronize("cuda")
    return taken
