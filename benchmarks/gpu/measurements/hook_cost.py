"""What the hooks cost the training thread per step, in a process that trains on a GPU.

It times the calls of benchmarks/hook_overhead.py, once with numbers of the host and once with tensors of the device.
"""

import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.outcome import Check, Outcome
from benchmarks.gpu.timing import synchronize, us
from benchmarks.hook_overhead import WARM_UP_STEPS, attached, percentiles, time_hooks
from holdfast_hooks import Hooks, Phase

_ROUNDS, _STEPS = 5, 400
_P50_CEILING_US = 25.0
"""The ceiling of a CPU is 5 us. A rank on a GPU also records events, to measure its own time on it."""
_WIDTH = 512
_LAUNCHES = 20
"""Kernels of a step: the host stays ahead of the device."""


def measure(device: str) -> Outcome:
    """Time the hook calls of a step."""
    weight = torch.randn(_WIDTH, _WIDTH, device=device) if device == "cuda" else torch.randn(8, 8)
    rounds = _ROUNDS if device == "cuda" else 1
    with tempfile.TemporaryDirectory(prefix="hf-") as folder, attached(Path(folder)) as hooks:
        host = min((percentiles(time_hooks(hooks, _STEPS)) for _ in range(rounds)), key=lambda one: one["p50_us"])
    with tempfile.TemporaryDirectory(prefix="hf-") as folder, attached(Path(folder)) as hooks:
        owed = percentiles(_time_owed(hooks, weight))
    figures = {
        "all hook calls of a step, p50": us(host["p50_us"]),
        "all hook calls of a step, p99": us(host["p99_us"]),
        "the same with loss and norm as tensors of the device, p50": us(owed["p50_us"]),
        "the same with tensors, p99": us(owed["p99_us"]),
    }
    is_cheap = device == "cpu" or host["p50_us"] <= _P50_CEILING_US
    return Outcome.of(figures, [Check(f"at most {_P50_CEILING_US:g} us with numbers of the host, p50", is_cheap)])


def _time_owed(hooks: Hooks, weight: torch.Tensor) -> list[float]:
    costs_us = []
    for step in hooks.steps(until=WARM_UP_STEPS + _STEPS):
        value = weight
        for _ in range(_LAUNCHES):
            value = value @ weight
        loss, norm = value.sum(), value.norm()
        if step % 50 == 0:
            synchronize(weight.device.type)  # a queue that is full would make every launch wait
        began_ns = time.perf_counter_ns()
        hooks.enter(Phase.DATA)
        hooks.enter(Phase.FORWARD_BACKWARD)
        hooks.enter(Phase.OPTIMIZER)
        hooks.report(loss=loss, grad_norm=norm, tokens=4096)
        if step >= WARM_UP_STEPS:
            costs_us.append((time.perf_counter_ns() - began_ns) / 1000)
    return costs_us
