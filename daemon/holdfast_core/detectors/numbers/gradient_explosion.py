"""The gradient norm has left its range and stays out: it often does so some steps before the loss jumps.

    z = (log g - median(log g)) / max(1.4826 x MAD(log g), 0.05)

over the last 128 accepted norms g, because norms scatter by factors. A step is outlying if z > 6 and g is more than
3 times the median norm; three of the last five steps are an explosion. Outlying norms are kept out of the
baseline until 128 of them in one episode have made their level the new one. Norms that are not finite, or
not positive, are others' to judge.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_core.detectors.numbers.sorted_window import SortedWindow
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

WINDOW_STEPS = 128
MIN_HISTORY_STEPS = 32
"""Accepted norms before any is judged: those of a first step can be a hundred times what follows."""

_Z_LIMIT = 6.0
_RISE_LIMIT_RATIO = 3.0
"""Healthy runs have single norms of a few times the median, and seldom three of five. On labelled runs, 10 times found
half as many of the explosions, and 2 times brought about 4 false alarms in 100,000 steps."""

_LOG_RISE_LIMIT = math.log(_RISE_LIMIT_RATIO)
_MOST_LOG_RATIO = math.log(1e100)

_OUTLYING_STEPS, _OF_STEPS = 3, 5
_CALM_STEPS = 5
"""Steps in a row within the limits that end an episode."""

_LEAST_LOG_SIGMA = 0.05


@dataclass(frozen=True)
class GradientExplosion(Detector):
    """Reports once in an episode, as an early warning."""

    name: ClassVar[str] = "gradient_explosion"

    _log_norms: SortedWindow = field(default_factory=SortedWindow)
    """The baseline."""
    _outlying: tuple[bool, ...] = ()
    """Of the newest steps."""
    _outlying_log_norms: tuple[float, ...] = ()
    """Of the present episode."""
    _reported: bool = False

    def see_step(self, step: StepView) -> DetectorResult:
        """Judge the norm against its own past."""
        norm = step.summary.grad_norm
        if not math.isfinite(norm) or norm <= 0.0:
            return DetectorResult(self)
        log_norm = math.log(norm)
        if not self._is_outlying(log_norm):
            return DetectorResult(self._accept(log_norm))
        watch = replace(
            self,
            _outlying=(*self._outlying, True)[-_OF_STEPS:],
            _outlying_log_norms=(*self._outlying_log_norms, log_norm),
        )
        if len(watch._outlying_log_norms) >= WINDOW_STEPS:
            window = SortedWindow.of(watch._outlying_log_norms)
            return DetectorResult(GradientExplosion(window))
        if self._reported or sum(watch._outlying) < _OUTLYING_STEPS:
            return DetectorResult(watch)
        return DetectorResult(replace(watch, _reported=True), findings_of(self._verdict(step.step, norm)))

    def restarted(self, _after_step: int) -> Self:
        """Begin a new baseline."""
        return type(self)()

    def _is_outlying(self, log_norm: float) -> bool:
        if len(self._log_norms) < MIN_HISTORY_STEPS:
            return False
        rise = log_norm - self._log_norms.quantile(0.5)
        if rise <= _LOG_RISE_LIMIT:
            return False
        return rise > _Z_LIMIT * max(self._log_norms.sigma(), _LEAST_LOG_SIGMA)

    def _accept(self, log_norm: float) -> "GradientExplosion":
        log_norms = self._log_norms.with_value(log_norm, WINDOW_STEPS)
        outlying = (*self._outlying, False)[-_OF_STEPS:]
        if outlying == (False,) * _CALM_STEPS:
            return GradientExplosion(log_norms, outlying)
        return replace(self, _log_norms=log_norms, _outlying=outlying)

    def _verdict(self, step: int, norm: float) -> store.Verdict:
        detail = store.GradientExplosionDetail(
            norm=norm,
            median_ratio=math.exp(min(math.log(norm) - self._log_norms.quantile(0.5), _MOST_LOG_RATIO)),
            high_steps=_OUTLYING_STEPS,
            of_steps=_OF_STEPS,
        )
        return store.Verdict(
            kind=store.VERDICT_KIND_GRADIENT_EXPLOSION, step=step, confidence_ratio=1.0, gradient_explosion=detail
        )
