"""What the hooks execute in the training thread at each step. Their time is measured by benchmarks/hook_overhead.py."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import holdfast_hooks
from holdfast_hooks import Hooks, Phase

CALLS = 12
INSTRUCTIONS = 550
"""Ceilings for one step. On Python 3.11 a step takes 12 calls and 503 instructions."""


class Counter:
    """A trace function that counts what this thread executes."""

    def __init__(self) -> None:
        self.calls = self.instructions = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> "Counter":
        frame.f_trace_opcodes = True
        self.calls += event == "call"
        self.instructions += event == "opcode"
        return self


@contextlib.contextmanager
def counted() -> Iterator[Counter]:
    """Count what this thread executes in the block."""
    counter, tracer = Counter(), sys.gettrace()
    # A collection in the middle of a step runs the finalizers of whatever earlier tests have left behind.
    gc.disable()
    sys.settrace(counter)
    try:
        yield counter
    finally:
        sys.settrace(tracer)
        gc.enable()


def cost_of_each_step(hooks: Hooks) -> list[tuple[int, int]]:
    steps = hooks.steps(until=40)
    next(steps)
    costs = []
    with counted() as counter:
        for _ in range(30):
            calls, instructions = counter.calls, counter.instructions
            hooks.enter(Phase.DATA)
            hooks.enter(Phase.FORWARD_BACKWARD)
            hooks.enter(Phase.OPTIMIZER)
            hooks.report(loss=2.5, grad_norm=0.7, tokens=4096)
            next(steps)
            costs.append((counter.calls - calls, counter.instructions - instructions))
    return costs


def test_a_step_without_a_snapshot_takes_few_calls_and_few_instructions(agent: Any, launched: object) -> None:
    with holdfast_hooks.attach() as hooks:
        agent.wait_until(lambda: agent.of("hello"))
        costs = cost_of_each_step(hooks)
    # A signal or a weak reference of another test may still run code in this thread: it meets single steps only.
    nine_of_ten = len(costs) * 9 // 10
    assert 0 < sorted(calls for calls, _ in costs)[nine_of_ten - 1] <= CALLS
    assert 0 < sorted(instructions for _, instructions in costs)[nine_of_ten - 1] <= INSTRUCTIONS
