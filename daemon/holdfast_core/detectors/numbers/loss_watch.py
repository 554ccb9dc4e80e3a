"""Watches a run's loss for blips, spikes and bad resumes.

    z = (loss - level - median(r)) / sigma

See loss_baseline.py for the level, the residuals r and sigma.

A step is outlying if z > 5 and the loss is more than 2 % above its level. One outlying step is a blip, which healthy
runs have. Of the last five steps, three make a spike if they are outlying, or if their z is above 3 and that of one
of them above 8: a jump that decays quickly. So do three in a row with z above 12, 4 and 2, which decay faster still.
Five in a row with z above 2.8 do not: on labelled runs such shifts were as often healthy as not. Outlying losses are
kept out of the baseline.

After a restart the first 32 losses are judged against the level and the scatter at the step that the run continues
after: a run that resumes well has the loss that it had.
"""

import math
from dataclasses import dataclass, field, replace

from holdfast_core.detectors.numbers.loss_baseline import HIGH_Z, WINDOW, LossBaseline

Z_LIMIT = 5.0
RISE_LIMIT_RATIO = 0.02
SPIKE_STEPS, SPIKE_OF = 3, 5
_DECAYING_PEAK_Z, _DECAYING_RISE_RATIO = 8.0, 0.01
_TAIL_Z = (12.0, 4.0, 2.0)
CALM_STEPS = 5
"""Steps in a row within the limits that end an episode."""

_UNSETTLED_Z = 2.0
"""A step this far off may already be part of what is about to happen: it proves no state."""
_MOST_Z = 9999.0
_MOST_LOSS = 1e100
_MARK_EVERY, _MARKS = 8, 128
RESUME_STEPS = 32
RESUME_RISE_RATIO = 0.05
"""The level is up to eight losses old, and the data of the next steps may be other than before."""

_RATE_JUMP_RATIO = 1.5
"""A schedule that begins anew raises the learning rate by more from one step to the next; a warm-up, from its third
step on, by less."""


def schedule_begins_anew(rate_before: float, rate: float) -> bool:
    """Return whether a learning rate has jumped, so that the loss rises as the schedule means it to; 0: not known."""
    return 0.0 < _RATE_JUMP_RATIO * rate_before < rate


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
    """Newest step before the first unsettled one of a spike. The state at the end of any earlier step is good: a
    loss was computed with it, or with what came of it."""
    since_step: int | None = None
    """First of the high steps that make a spike; None right after a restart."""
    level: float = 0.0
    """What the loss was compared with."""
    resumed_after: int | None = None
    """Step that the run continued after, of a spike right after a restart."""


@dataclass(frozen=True)
class LossMark:
    """The usual loss at a step."""

    step: int
    level: float
    sigma: float


@dataclass(frozen=True)
class LossWatch:
    """The watch's state. Steps are fed in order; a step at or before the last one is passed over."""

    in_spike: bool = False
    """Whether a spike has been found and its episode lasts."""
    _last_step: int = -1
    _baseline: LossBaseline = field(default_factory=LossBaseline)
    _zscores: tuple[float, ...] = ()
    """z of the newest steps; 0 if the rise was small."""
    _steps: tuple[int, ...] = ()
    """Newest steps that had a loss, as many as ``_zscores``."""
    _outlying: tuple[bool, ...] = ()
    """Whether each of the newest steps was outlying."""
    _outlying_in_episode: int = 0
    _settled_run: int = 0
    _proven_step: int = -1
    """Newest step with a settled loss, outside of any episode."""
    _marks: tuple[LossMark, ...] = ()
    _resume: LossMark | None = None
    """Mark that the first losses after a restart are judged against."""
    _resumed_after: int = -1
    _resume_losses: int = 0

    def observe(self, step: int, loss: float | None) -> tuple["LossWatch", LossReading]:
        """Return the next state and the reading of ``loss``; None, and a number that is not finite, read as nothing."""
        if step <= self._last_step:
            return self, LossReading()
        if loss is None or not math.isfinite(loss):
            return replace(self, _last_step=step), LossReading()
        return self._observe_finite(step, max(-_MOST_LOSS, min(_MOST_LOSS, loss)))

    def resumed(self, after_step: int) -> "LossWatch":
        """Return the watch of a run that continues after ``after_step``: later steps are undone."""
        marks = tuple(mark for mark in self._marks if mark.step <= after_step)
        return LossWatch(
            _marks=marks,
            _resume=marks[-1] if marks else None,
            _resumed_after=after_step,
            _last_step=after_step,
            _proven_step=after_step,
        )

    def with_new_level(self) -> "LossWatch":
        """Return the watch with a new baseline: what comes next is not to be compared with what was."""
        return LossWatch(_last_step=self._last_step, _proven_step=self._proven_step)

    def _observe_finite(self, step: int, loss: float) -> tuple["LossWatch", LossReading]:
        if self._resume is not None:
            return self._observe_resumed(step, loss, self._resume)
        baseline = self._baseline
        level = baseline.level
        zscore, rise, sigma, outlying = 0.0, 0.0, 0.0, False
        if level is not None and baseline.is_ready:
            sigma = baseline.sigma(level)
            rise = baseline.rise(loss, level)
            zscore = _zscore(rise, sigma)
            outlying = zscore > Z_LIMIT and rise > RISE_LIMIT_RATIO * abs(level)
        flags = (*self._outlying, outlying)[-max(SPIKE_OF, CALM_STEPS) :]
        has_risen = level is not None and rise > _DECAYING_RISE_RATIO * abs(level)
        zscores = (*self._zscores, zscore if has_risen else 0.0)[-SPIKE_OF:]
        steps = (*self._steps, step)[-SPIKE_OF:]
        spike = not self.in_spike and (sum(flags[-SPIKE_OF:]) >= SPIKE_STEPS or _decays(zscores))
        settled_run = self._settled_run + 1 if abs(zscore) <= _UNSETTLED_Z else 0
        is_proof = settled_run >= min(CALM_STEPS, baseline.seen + 1) and not (outlying or self._outlying_in_episode)
        watch = LossWatch(
            in_spike=self.in_spike or spike,
            _last_step=step,
            _baseline=baseline.with_loss(loss, level, zscore, outlying=outlying),
            _zscores=zscores,
            _steps=steps,
            _outlying=flags,
            _outlying_in_episode=self._outlying_in_episode + outlying,
            _settled_run=settled_run,
            _proven_step=step if is_proof else self._proven_step,
            _marks=self._marked(step, level, sigma),
        )
        reading = LossReading(
            zscore=zscore,
            blip=outlying,
            spike=spike,
            proven_step=self._proven_step if spike else -1,
            since_step=_first_high(steps, zscores) if spike else None,
            level=level if level is not None and sigma > 0.0 else 0.0,
        )
        return watch._end_episode(), reading

    def _observe_resumed(self, step: int, loss: float, usual: LossMark) -> tuple["LossWatch", LossReading]:
        """Judge one of the first losses after a restart, and let the new baseline learn from it."""
        rise = loss - usual.level
        zscore = _zscore(rise, usual.sigma)
        outlying = zscore > Z_LIMIT and rise > RESUME_RISE_RATIO * abs(usual.level)
        flags = (*self._outlying, outlying)[-SPIKE_OF:]
        spike = not self.in_spike and sum(flags) >= SPIKE_STEPS
        losses = self._resume_losses + 1
        is_over = losses >= RESUME_STEPS
        baseline = self._baseline
        watch = replace(
            self,
            in_spike=(self.in_spike or spike) and not is_over,
            _last_step=step,
            _baseline=baseline.with_loss(loss, baseline.level, zscore, outlying=False),
            _outlying=() if is_over else flags,
            _proven_step=step if is_over and not any(flags) else self._proven_step,
            _resume=None if is_over else usual,
            _resume_losses=losses,
        )
        return watch, LossReading(
            zscore=zscore,
            blip=outlying,
            spike=spike,
            proven_step=self._resumed_after if spike else -1,
            level=usual.level,
            resumed_after=self._resumed_after if spike else None,
        )

    def _marked(self, step: int, level: float | None, sigma: float) -> tuple[LossMark, ...]:
        if level is None or sigma <= 0.0 or self._outlying_in_episode or self._baseline.seen % _MARK_EVERY:
            return self._marks
        return (*self._marks, LossMark(step, level, sigma))[-_MARKS:]

    def _end_episode(self) -> "LossWatch":
        if len(self._outlying) >= CALM_STEPS and not any(self._outlying[-CALM_STEPS:]):
            if not self.in_spike and not self._outlying_in_episode:
                return self
            return replace(self, in_spike=False, _outlying_in_episode=0)
        if self._outlying_in_episode >= WINDOW:
            # The loss has settled on a new level: judge what comes against that.
            return replace(
                self, in_spike=False, _baseline=self._baseline.settled(), _outlying=(), _outlying_in_episode=0
            )
        return self


def _zscore(rise: float, sigma: float) -> float:
    """Return a finite z; 0 if nothing scatters, as when a loss is always exactly 0."""
    return max(-_MOST_Z, min(_MOST_Z, rise / sigma)) if sigma > 0.0 else 0.0


def _decays(zscores: tuple[float, ...]) -> bool:
    if zscores[-1] <= _TAIL_Z[-1]:  # as most often
        return False
    high = [zscore for zscore in zscores if zscore > HIGH_Z]
    if len(high) >= SPIKE_STEPS and max(high) > _DECAYING_PEAK_Z and zscores[-1] > HIGH_Z:
        return True
    tail = zscores[-len(_TAIL_Z) :]
    return len(tail) == len(_TAIL_Z) and all(zscore > least for zscore, least in zip(tail, _TAIL_Z, strict=True))


def _first_high(steps: tuple[int, ...], zscores: tuple[float, ...]) -> int:
    """Return the first high step of a spike, which has at least one."""
    return next(step for step, zscore in zip(steps, zscores, strict=True) if zscore > HIGH_Z)
