"""Watches a run's loss for blips and spikes.

    z = (loss - median) / max(1.4826 x MAD, 0.1 % of |median|)

over the last 128 accepted losses; 1.4826 makes MAD a standard deviation for normal noise. A step is outlying
if z > 5 and it is more than 2 % above the median. One outlying step is a blip, which healthy
runs have; three of the last five are a spike. Outlying losses are kept out of the baseline.
"""

import math
from dataclasses import dataclass, replace

from holdfast_daemon.core.detectors.numbers.robust import spread

WINDOW = 128
MIN_HISTORY = 32
"""Accepted losses before any is judged."""

Z_LIMIT = 5.0
RISE_LIMIT_RATIO = 0.02
SPIKE_STEPS, SPIKE_OF = 3, 5
CALM_STEPS = 5
"""Steps in a row within the limits that end an episode."""

_SIGMA_FLOOR_RATIO = 0.001


@dataclass(frozen=True)
class LossReading:
    """How the loss of one step compares with the losses before."""

    zscore: float = 0.0
    """0 without a finite loss, and before there is enough history."""
    blip: bool = False
    """An outlying step, alone or in a spike."""
    spike: bool = False
    """The step that makes a spike of an episode: once in each."""
    proven_step: int = -1
    """Of a spike: the newest step before it with a loss within the limits. The state at the end of any earlier step
    is good: a loss was computed with it, or with what came of it."""


@dataclass(frozen=True)
class LossWatch:
    """The watch's state. Steps are fed in order; a step at or before the last one is passed over."""

    in_spike: bool = False
    """Whether a spike has been found and its episode lasts."""
    _last_step: int = -1
    _baseline: tuple[float, ...] = ()
    _recent: tuple[float, ...] = ()
    """The newest losses, accepted or not: the next baseline if an episode does not end."""
    _outlying: tuple[bool, ...] = ()
    """Of the newest steps."""
    _outlying_in_episode: int = 0
    _proven_step: int = -1
    """Newest step with a loss within the limits, outside of any episode."""

    def observe(self, step: int, loss: float | None) -> tuple["LossWatch", LossReading]:
        """Return the next state and the reading of ``loss``; None, and a number that is not finite, read as nothing."""
        if step <= self._last_step:
            return self, LossReading()
        watch = replace(self, _last_step=step)
        if loss is None or not math.isfinite(loss):
            return watch, LossReading()
        return watch._observe_finite(loss)

    def _observe_finite(self, loss: float) -> tuple["LossWatch", LossReading]:
        zscore, outlying = self._judge(loss)
        flags = (*self._outlying, outlying)[-max(SPIKE_OF, CALM_STEPS) :]
        spike = not self.in_spike and sum(flags[-SPIKE_OF:]) >= SPIKE_STEPS
        watch = replace(
            self,
            in_spike=self.in_spike or spike,
            _baseline=self._baseline if outlying else (*self._baseline, loss)[-WINDOW:],
            _recent=(*self._recent, loss)[-WINDOW:],
            _outlying=flags,
            _outlying_in_episode=self._outlying_in_episode + outlying,
            _proven_step=self._proven_step if outlying or self._outlying_in_episode else self._last_step,
        )
        proven_step = watch._proven_step if spike else -1
        return watch._end_episode(), LossReading(zscore=zscore, blip=outlying, spike=spike, proven_step=proven_step)

    def _judge(self, loss: float) -> tuple[float, bool]:
        if len(self._baseline) < MIN_HISTORY:
            return 0.0, False
        # The smallest float keeps a constant loss of zero from dividing by zero.
        usual = spread(self._baseline, least_sigma=math.ulp(0.0), least_sigma_ratio=_SIGMA_FLOOR_RATIO)
        zscore = usual.zscore(loss)
        return zscore, zscore > Z_LIMIT and loss - usual.middle > RISE_LIMIT_RATIO * abs(usual.middle)

    def _end_episode(self) -> "LossWatch":
        if len(self._outlying) >= CALM_STEPS and not any(self._outlying[-CALM_STEPS:]):
            return replace(self, in_spike=False, _outlying_in_episode=0)
        if self._outlying_in_episode >= WINDOW:
            # The loss has settled on a new level: judge what comes against that.
            return replace(self, in_spike=False, _baseline=self._recent, _outlying=(), _outlying_in_episode=0)
        return self
