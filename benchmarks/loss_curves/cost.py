"""Measures what the detectors that look at the numbers of steps cost for each step."""

import random
import time
from collections.abc import Sequence

from holdfast_core.deadlines import Deadlines
from holdfast_core.detectors import registry
from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

FAMILIES = (".detectors.numbers.", ".detectors.speed.")
LEARNING_STEPS, MEASURED_STEPS, REPEATS = 300, 100, 60
_DEADLINES = Deadlines.for_preset(store.PRESET_DEFAULT)


def cost_us() -> dict[str, float]:
    """Return microseconds of CPU time for a step of a healthy run, by detector, and their sums by family.

    Each is the least of many repeats: other work on the machine only adds to it.
    """
    views = _healthy(LEARNING_STEPS + MEASURED_STEPS)
    costs, totals = {}, dict.fromkeys(FAMILIES, 0.0)
    for kind in registry.ALL:
        family = next((family for family in FAMILIES if family in kind.__module__), None)
        if family is not None:
            costs[kind.name] = round(_least_us(kind(), views), 1)
            totals[family] += costs[kind.name]
    return {**costs, **{f"all {family.split('.')[2]}": round(total, 1) for family, total in totals.items()}}


def _least_us(fresh: Detector, views: Sequence[StepView]) -> float:
    learnt = fresh
    for view in views[:LEARNING_STEPS]:
        learnt = learnt.see_step(view).next
    least_s = float("inf")
    for _ in range(REPEATS):
        detector = learnt
        begun = time.thread_time()
        for view in views[LEARNING_STEPS:]:
            detector = detector.see_step(view).next
        least_s = min(least_s, time.thread_time() - begun)
    return 1e6 * least_s / MEASURED_STEPS


def _healthy(steps: int) -> list[StepView]:
    """Return the steps of a run that reports all of its numbers at each."""
    noise = random.Random(1)
    return [StepView(1000.0 + step, _summary(step, noise), _DEADLINES, {}) for step in range(steps)]


def _summary(step: int, noise: random.Random) -> store.StepSummary:
    return store.StepSummary(
        step=step,
        generation=1,
        loss_sum=3.0 * 0.999**step + noise.gauss(0.0, 0.05),
        loss_count=1,
        grad_norm=noise.lognormvariate(0.0, 0.2),
        learning_rate=1e-3,
        tokens=1000,
        duration_s=1.0 + noise.gauss(0.0, 0.02),
        mfu=store.Mean(sum=0.8, count=2),
        phase_s={common.PHASE_DATA: 0.1, common.PHASE_FORWARD_BACKWARD: 0.8, common.PHASE_OPTIMIZER: 0.05},
    )
