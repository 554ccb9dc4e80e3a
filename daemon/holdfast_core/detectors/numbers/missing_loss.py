"""A run that used to report its loss does so no more: counters that stay at 0 look healthy.

Most runs report all their numbers in some steps only, and many change how often. So a step without any number says
nothing, but a gradient norm without a loss does: the loop still reports, and leaves the loss out. The loss is missing

    after 100 steps with a gradient norm and without a loss; or after 6 times the most that this run had between two
    losses; or after twice the most that was reported: the largest of these; or else

    after 2,000 times as many steps as ever from one loss to the next, whatever they report

A change from each step to each 1,000th step meets neither line if the gradient norm comes as rarely as the loss.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, Ending, findings_of
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

LIMIT_STEPS = 100
"""Some trainers report the norm at each step, and the loss at the first few steps and then at each 100th."""
HABIT_RATIO, REPORTED_RATIO = 6, 2
"""A gap that was reported may have been an outage and not a habit: less of it is needed to report the next one."""
SILENT_RATIO = 2000

_REPORTS_TO_KNOW_CADENCE = 3


@dataclass(frozen=True)
class MissingLoss(Detector):
    """Reports once, and ends that incident when a loss comes again."""

    name: ClassVar[str] = "missing_loss"

    _reports: int = 0
    _newest_step: int = -1
    """Newest step with a loss."""
    _without: int = 0
    """Steps since then."""
    _with_norm: int = 0
    """Steps since then that had a gradient norm."""
    _most_without: int = 0
    """Most steps between two losses."""
    _longest_gap: int = 0
    """Most steps with a gradient norm between two losses, of the gaps that were not reported."""
    _longest_reported: int = 0
    """The same, of the gaps that were reported."""
    _reported: bool = False

    def see_step(self, step: StepView) -> DetectorResult:
        """Count steps without a loss."""
        if step.loss is not None:
            endings = (self._ending(step.step),) if self._reported else ()
            return DetectorResult(self._learnt(step.step), endings=endings)
        has_norm = step.summary.HasField("grad_norm")
        watch = replace(self, _without=self._without + 1, _with_norm=self._with_norm + has_norm)
        if self._reported or not watch._is_missing:
            return DetectorResult(watch)
        detail = store.MissingLossDetail(newest_step=self._newest_step, steps=watch._without)
        if watch._with_norm >= watch._norm_limit:
            detail.norm_steps = watch._with_norm
        verdict = store.Verdict(
            kind=store.VERDICT_KIND_MISSING_LOSS, step=step.step, confidence_ratio=1.0, missing_loss=detail
        )
        return DetectorResult(replace(watch, _reported=True), findings_of(verdict), ("missing",))

    def restarted(self, _after_step: int) -> Self:
        """Count from 0. How often the run reports a loss stays known."""
        return replace(self, _without=0, _with_norm=0)

    def _ending(self, step: int) -> Ending:
        return Ending(store.VERDICT_KIND_MISSING_LOSS, f"a loss is reported again at step {step}")

    def _learnt(self, step: int) -> "MissingLoss":
        """Return the detector after a loss, which ends a gap."""
        without, with_norm = (self._without, self._with_norm) if self._reports else (0, 0)
        gap, reported_gap = (0, with_norm) if self._reported else (with_norm, 0)
        return MissingLoss(
            _reports=self._reports + 1,
            _newest_step=step,
            _most_without=max(self._most_without, without),
            _longest_gap=max(self._longest_gap, gap),
            _longest_reported=max(self._longest_reported, reported_gap),
        )

    @property
    def _is_missing(self) -> bool:
        return self._with_norm >= self._norm_limit or self._without >= self._silent_limit

    @property
    def _norm_limit(self) -> float:
        if self._reports < _REPORTS_TO_KNOW_CADENCE:
            return math.inf
        return max(LIMIT_STEPS, HABIT_RATIO * self._longest_gap + 1, REPORTED_RATIO * self._longest_reported + 1)

    @property
    def _silent_limit(self) -> float:
        if self._reports < _REPORTS_TO_KNOW_CADENCE:
            return math.inf
        return SILENT_RATIO * (self._most_without + 1)
