"""A run that used to report its loss does so no more: counters that stay at 0 look healthy."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_daemon.core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

LIMIT_STEPS = 20
HABIT_RATIO, REPORTED_RATIO = 6, 2
"""How many times the longest gap must pass. Runs change how often they report, from every 100th step to every 500th.
A gap that was reported may have been an outage and not a habit: less of it is needed to report the next one."""

_REPORTS_TO_KNOW_CADENCE = 3


@dataclass(frozen=True)
class MissingLoss(Detector):
    """Reports once, until a loss comes again.

    A run may report every n-th step only, and may change n. So the limit follows the longest gap so far.
    """

    name: ClassVar[str] = "missing_loss"

    _reports: int = 0
    _newest_step: int = -1
    """That had a loss."""
    _without: int = 0
    """Steps since then."""
    _longest_gap: int = 0
    """Most steps without a loss between two losses, of the gaps that were not reported."""
    _longest_reported: int = 0
    """The same, of those that were."""

    def see_step(self, step: StepView) -> DetectorResult:
        """Count steps without a loss."""
        if step.loss is not None:
            return DetectorResult(self._learnt(step.step))
        without = self._without + 1
        watch = replace(self, _without=without)
        if without != self._limit:
            return DetectorResult(watch)
        verdict = store.Verdict(
            kind=store.VERDICT_KIND_MISSING_LOSS,
            step=step.step,
            confidence_ratio=1.0,
            missing_loss=store.MissingLossDetail(newest_step=self._newest_step),
        )
        return DetectorResult(watch, findings_of(verdict), ("missing",))

    def restarted(self, _after_step: int) -> Self:
        """Count from 0. How often the run reports a loss stays known."""
        return replace(self, _without=0)

    def _learnt(self, step: int) -> "MissingLoss":
        """Return the detector after a loss, which ends a gap."""
        watch = replace(self, _reports=self._reports + 1, _newest_step=step, _without=0)
        if not self._reports:
            return watch
        if self._without < self._limit:
            return replace(watch, _longest_gap=max(self._longest_gap, self._without))
        return replace(watch, _longest_reported=max(self._longest_reported, self._without))

    @property
    def _limit(self) -> float:
        if self._reports < _REPORTS_TO_KNOW_CADENCE:
            return math.inf
        return max(LIMIT_STEPS, HABIT_RATIO * self._longest_gap + 1, REPORTED_RATIO * self._longest_reported + 1)
