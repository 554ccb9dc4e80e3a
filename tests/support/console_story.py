"""A run with a past: curves, uses of its time, and a hang at the end. Pages of the console have something to show."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace

from holdfast_daemon.history.rows import CountedStep
from holdfast_proto.v1 import store_pb2 as store
from tests.support.console_server import SimulatedConsole, keep_evidence
from tests.support.histories import counted, write_steps

STEPS = 1200
_USES = {
    "productive": 560.0, "start_up": 12.0, "detection": 4.5, "restart": 9.0, "repeated_steps": 3.0,
    "checkpoint_stall": 2.0, "data_wait": 6.0, "evaluation": 8.0,
}  # fmt: skip


def tell_story(console: SimulatedConsole, culprit: int = 3) -> str:
    """Give the first run a past, and let a rank hang until there is a verdict; return the incident."""
    run = console.run
    write_steps(console.directory, _steps(0, spike=700), run=run.run_name, instance="simulated")
    write_steps(console.directory, _steps(1, spike=-1), run="llama-7b-warm-up", instance="earlier")

    def change() -> str:
        assert run.state is not None
        record = store.CoordinatorState()
        record.CopyFrom(run.state.record)
        record.time_use.since_unix_s = run.now
        record.time_use.settled_s.update(_USES)
        run.state = replace(run.state, record=record)
        run.steps_until = 5000
        run.advance(STEPS * run.step_s)
        for _ in range(4):
            run.advance(run.step_s)
        run.hang(culprit)
        run.advance(3.0)
        incident = run.judge(culprit)
        keep_evidence(console.directory, run, incident.id)
        run.advance(0.5)
        return incident.id

    identity: str = console.on_loop(change)
    return identity


def _steps(seed: int, spike: int) -> Iterator[CountedStep]:
    """Yield steps whose loss falls with noise, jumps at ``spike``, and once is not finite; -1: neither."""
    noise = random.Random(seed)
    for step in range(STEPS):
        jump = 1.8 * math.exp(-(step - spike) / 25) if 0 <= spike <= step else 0.0
        grad_norm = 1.1 + 0.25 * noise.random() + jump
        tokens_per_s = 131_072 * (0.97 + 0.04 * noise.random())
        step_s = 0.5 * (1 + 0.05 * noise.random())
        if spike >= 0 and step == 400:
            bad = ("loss",)
            yield counted(step, nonfinite=bad, grad_norm=grad_norm, tokens_per_s=tokens_per_s, step_s=step_s)
        else:
            loss = 2.2 + (6.0 - seed) * math.exp(-step / 260) + 0.12 * noise.gauss(0, 1) + jump
            yield counted(step, loss=loss, grad_norm=grad_norm, tokens_per_s=tokens_per_s, step_s=step_s)
