"""An overflow loop, in which every step is skipped, as against the odd skipped step that loss scaling brings."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_daemon.core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

LIMIT_STEPS = 20
"""torch's GradScaler begins at 2^16 and halves at each overflow: after 20 in a row, at 2^-4, the scale is no cause."""


@dataclass(frozen=True)
class OverflowLoop(Detector):
    """Reports once in a generation."""

    name: ClassVar[str] = "overflow_loop"

    _streak_steps: int = 0
    _reported: bool = False

    def see_step(self, step: StepView) -> DetectorResult:
        """Count skipped steps in a row."""
        streak_steps = self._streak_steps + 1 if step.summary.overflow else 0
        if self._reported or streak_steps != LIMIT_STEPS:
            return DetectorResult(OverflowLoop(streak_steps, self._reported))
        detail = store.OverflowDetail(steps=LIMIT_STEPS)
        if step.summary.HasField("loss_scale") and math.isfinite(step.summary.loss_scale):
            detail.loss_scale = step.summary.loss_scale
        verdict = store.Verdict(
            kind=store.VERDICT_KIND_OVERFLOW_LOOP, step=step.step, confidence_ratio=1.0, overflow=detail
        )
        return DetectorResult(OverflowLoop(streak_steps, _reported=True), findings_of(verdict))

    def restarted(self, _after_step: int) -> Self:
        """Count from 0."""
        return type(self)()
