"""The loss has left its level and does not come back.

    level = the lowest median of 32 losses that is at least 64 losses old

The loss has diverged if, in sixteen looks in a row, eight losses apart,

    median of the newest 32 losses > 1.2 x level  and  nine of ten of these losses > 1.1 x level

So it has been high for 128 losses at least, and few of the newest ones are near the level. It has come back once the
median is below 1.1 x level. A smaller rise is for loss_rise.py, a shorter one for loss_spike.py.

A loss that is zero or of both signs is not judged. A learning rate that jumps begins a new level: so a schedule that
begins anew is no divergence.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, Ending, Finding
from holdfast_core.detectors.numbers.loss_rise import LossMedian
from holdfast_core.detectors.numbers.loss_watch import schedule_begins_anew
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

MEDIAN_LOSSES, JUDGED_EVERY = 32, 8
LEVEL_AGE_LOSSES = 64
HIGH_LOOKS = 16
HIGH_RATIO, BACK_RATIO = 1.2, 1.1
"""On 114 labelled runs neither 1.1 nor 1.2 brings a false alarm. Changes that are planned do, where no learning rate is
logged: 6 of them after 64 losses, 2 after 128."""

_USUAL_RATIO = 1.05
"""Below that, the state is taken for good."""
_LOW_SHARE = 0.1


@dataclass(frozen=True)
class LossDivergence(Detector):
    """Reports once, and ends that incident when the loss comes back."""

    name: ClassVar[str] = "loss_divergence"

    has_diverged: bool = False
    """Whether a divergence was found that lasts."""
    level: LossMedian | None = None
    """The lowest median; None: too few losses so far."""
    _losses: tuple[float, ...] = ()
    """The newest."""
    _seen: int = 0
    _medians: tuple[LossMedian, ...] = ()
    """Medians of the newest looks, too new to be the level."""
    _high_looks: int = 0
    """Looks in a row at which the loss was high."""
    _usual_step: int = -1
    """Newest step at which the loss was near the level."""
    _found_step: int = field(default=-1)
    """Step at which the present divergence was found."""
    _learning_rate: float = 0.0

    def see_step(self, step: StepView) -> DetectorResult:
        """Look at every eighth finite loss."""
        if step.loss is None or not math.isfinite(step.loss):
            return DetectorResult(self)
        rate = step.summary.learning_rate or self._learning_rate
        if schedule_begins_anew(self._learning_rate, rate):
            endings = self._endings(f"the learning rate has jumped at step {step.step}: the loss has a new level")
            return DetectorResult(LossDivergence(_learning_rate=rate), endings=endings)
        losses = (*self._losses, step.loss)[-MEDIAN_LOSSES:]
        watch = replace(self, _losses=losses, _seen=self._seen + 1, _learning_rate=rate)
        if len(losses) < MEDIAN_LOSSES or watch._seen % JUDGED_EVERY:
            return DetectorResult(watch)
        return watch._look(step.step)

    def restarted(self, after_step: int) -> Self:
        """Keep the level, and a divergence that lasts, unless their steps are undone."""
        if self.level is None or self.level.step > after_step:
            return type(self)(_learning_rate=self._learning_rate)
        lasts = self.has_diverged and self._found_step <= after_step
        return type(self)(
            has_diverged=lasts,
            level=self.level,
            _usual_step=min(self._usual_step, after_step),
            _found_step=self._found_step if lasts else -1,
            _learning_rate=self._learning_rate,
        )

    def _look(self, step: int) -> DetectorResult:
        ordered = sorted(self._losses)
        newest = LossMedian(ordered[len(ordered) // 2], step)
        medians, level = (*self._medians, newest), self.level
        if len(medians) > LEVEL_AGE_LOSSES // JUDGED_EVERY:
            level = medians[0] if level is None or medians[0].loss < level.loss else level
            medians = medians[1:]
        watch = replace(self, _medians=medians, level=level)
        if level is None or min(level.loss, ordered[0]) <= 0.0:
            return DetectorResult(replace(watch, _high_looks=0))
        if newest.loss <= _USUAL_RATIO * level.loss:
            watch = replace(watch, _usual_step=step)
        is_high = newest.loss > HIGH_RATIO * level.loss
        is_clear = ordered[int(_LOW_SHARE * len(ordered))] > BACK_RATIO * level.loss
        watch = replace(watch, _high_looks=self._high_looks + 1 if is_high and is_clear else 0)
        if self.has_diverged and newest.loss <= BACK_RATIO * level.loss:
            endings = self._endings(f"the loss has come back: its median is {newest.loss:.4g} at step {step}")
            return DetectorResult(replace(watch, has_diverged=False, _found_step=-1), endings=endings)
        if self.has_diverged or watch._high_looks < HIGH_LOOKS:
            return DetectorResult(watch)
        found = replace(watch, has_diverged=True, _found_step=step)
        return DetectorResult(found, (Finding(verdict=found._verdict(newest, level), proven_step=found._good_step),))

    @property
    def _good_step(self) -> int:
        """Step before which every state is good: one at which the loss was near its level."""
        return max(self._usual_step, self.level.step if self.level is not None else -1)

    def _endings(self, what: str) -> tuple[Ending, ...]:
        return (Ending(store.VERDICT_KIND_LOSS_DIVERGENCE, what),) if self.has_diverged else ()

    def _verdict(self, newest: LossMedian, level: LossMedian) -> store.Verdict:
        detail = store.LossDivergenceDetail(
            loss=newest.loss,
            lowest=level.loss,
            lowest_step=level.step,
            usual_step=self._good_step,
            losses=HIGH_LOOKS * JUDGED_EVERY,
        )
        return store.Verdict(
            kind=store.VERDICT_KIND_LOSS_DIVERGENCE, step=newest.step, confidence_ratio=1.0, loss_divergence=detail
        )
