"""A run that used to report its loss does so no more: counters that stay at 0 look healthy."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_daemon.core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

LIMIT_STEPS = 5
_REPORTS_TO_KNOW_CADENCE = 3


@dataclass(frozen=True)
class MissingLoss(Detector):
    """Reports once, until a loss comes again.

    A run may report every n-th step only: twice its longest gap is still no loss of reports.
    """

    name: ClassVar[str] = "missing_loss"

    _reports: int = 0
    _newest_step: int = -1
    """That had a loss."""
    _without: int = 0
    """Steps since then."""
    _longest_gap: int = 0
    """Most steps without a loss between two losses."""

    def see_step(self, step: StepView) -> DetectorResult:
        """Count steps without a loss."""
        if step.loss is not None:
            # A gap that was reported is no habit of the run.
            is_habit = self._reports and self._without < self._limit
            longest_gap = max(self._longest_gap, self._without) if is_habit else self._longest_gap
            return DetectorResult(MissingLoss(self._reports + 1, step.step, 0, longest_gap))
        without = self._without + 1
        watch = replace(self, _without=without)
        if without != self._limit:
            return DetectorResult(watch)
        verdict = store.Verdict(
            kind=store.VERDICT_KIND_MISSING_LOSS,
            message=f"no loss has been reported since step {self._newest_step}",
            step=step.step,
            confidence_ratio=1.0,
        )
        return DetectorResult(watch, findings_of(verdict), ("missing",))

    def restarted(self, _after_step: int) -> Self:
        """Count from 0. How often the run reports a loss stays known."""
        return replace(self, _without=0)

    @property
    def _limit(self) -> float:
        if self._reports < _REPORTS_TO_KNOW_CADENCE:
            return math.inf
        return max(LIMIT_STEPS, 2 * self._longest_gap + 1)
