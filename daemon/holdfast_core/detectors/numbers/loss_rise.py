"""The loss rises so slowly that no step stands out.

    rise = median of the newest 64 losses - the lowest such median that is at least 64 losses old

The loss has risen if, in five looks in a row, eight losses apart,

    rise > 3.5 % of the lowest median  and  rise > 5 x 1.4826 x MAD of the newest 64 losses

It is a note: a change of the data brings it, too. A loss that is zero or of both signs is not judged.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_core.detectors.numbers.loss_watch import schedule_begins_anew
from holdfast_core.detectors.numbers.sorted_window import SortedWindow
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

WINDOW_LOSSES, LOOK_EVERY = 64, 8
_LOOKS_APART = WINDOW_LOSSES // LOOK_EVERY
_LOOKS_IN_A_ROW = 5
_RISE_RATIO, _RISE_SIGMAS = 0.035, 5.0


@dataclass(frozen=True)
class LossMedian:
    """The median of the losses up to a step."""

    loss: float
    step: int


@dataclass(frozen=True)
class LossRise(Detector):
    """Reports once; the risen level is then the lowest."""

    name: ClassVar[str] = "loss_rise"

    _losses: tuple[float, ...] = ()
    """The newest."""
    _seen: int = 0
    _medians: tuple[LossMedian, ...] = ()
    """Medians of the newest looks, too new to be the lowest."""
    _lowest: LossMedian | None = field(default=None)
    _risen: int = 0
    """Looks in a row that showed a rise."""
    _learning_rate: float = 0.0

    def see_step(self, step: StepView) -> DetectorResult:
        """Look at every eighth loss."""
        if step.loss is None or not math.isfinite(step.loss):
            return DetectorResult(self)
        rate = step.summary.learning_rate or self._learning_rate
        if schedule_begins_anew(self._learning_rate, rate):
            return DetectorResult(LossRise(_learning_rate=rate))
        losses = (*self._losses, step.loss)[-WINDOW_LOSSES:]
        watch = LossRise(losses, self._seen + 1, self._medians, self._lowest, self._risen, rate)
        if len(losses) < WINDOW_LOSSES or watch._seen % LOOK_EVERY:
            return DetectorResult(watch)
        return watch._look(step.step)

    def restarted(self, after_step: int) -> Self:
        """Keep the lowest median, unless its steps are undone."""
        lowest = self._lowest if self._lowest is not None and self._lowest.step <= after_step else None
        return type(self)(_lowest=lowest)

    def _look(self, step: int) -> DetectorResult:
        window = SortedWindow.of(self._losses)
        newest = LossMedian(window.quantile(0.5), step)
        medians, lowest = (*self._medians, newest), self._lowest
        if len(medians) > _LOOKS_APART:
            lowest = medians[0] if lowest is None or medians[0].loss < lowest.loss else lowest
            medians = medians[1:]
        watch = replace(self, _medians=medians, _lowest=lowest)
        if lowest is None or min(lowest.loss, window.ordered[0]) <= 0.0:
            return DetectorResult(replace(watch, _risen=0))
        rise = newest.loss - lowest.loss
        has_risen = rise > _RISE_RATIO * lowest.loss and rise > _RISE_SIGMAS * window.sigma()
        watch = replace(watch, _risen=self._risen + 1 if has_risen else 0)
        if watch._risen < _LOOKS_IN_A_ROW:
            return DetectorResult(watch)
        again = LossRise(_losses=self._losses, _seen=self._seen, _learning_rate=self._learning_rate)
        return DetectorResult(again, findings_of(_verdict(newest, lowest)))


def _verdict(newest: LossMedian, lowest: LossMedian) -> store.Verdict:
    detail = store.LossRiseDetail(loss=newest.loss, lowest=lowest.loss, lowest_step=lowest.step, losses=WINDOW_LOSSES)
    return store.Verdict(kind=store.VERDICT_KIND_LOSS_RISE, step=newest.step, confidence_ratio=1.0, loss_rise=detail)
