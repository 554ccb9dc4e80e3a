"""Harms healthy curves in known ways, and counts how many of the harms are reported."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from benchmarks.loss_curves.curves import MIXUP, POLICY, Curve, Row
from benchmarks.loss_curves.trial import LOSS_ALARMS, Trial, feed, number_detectors, summary_of
from holdfast_core.deadlines import Deadlines
from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.numbers.missing_loss import LIMIT_STEPS, MissingLoss
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

BASELINES = 16
ONSET = 600
_LEAST_ROWS = ONSET + 1200
RAMPS = (100, 300, 500, 1000)
DIVERGENCES = (100, 300, 1000)
_STAY_ROWS = 200
_STAIR_ROWS = 100
_SPIKE_ROWS, _SPIKE_RATIO = 30, 1.5
_UNDONE_ROWS = 10
_RESUME_ROWS = 32
BAD_RESUME_RATIO = 1.3
_NOTES = (*LOSS_ALARMS, "loss_rise")
CADENCES = ((1, 2), (1, 10), (1, 100), (1, 1000), (10, 1), (10, 100), (50, 500), (100, 500), (7, 20), (1000, 10))
"""Steps from one report to the next, before and after a change."""
_REPORTS = 40

_DEADLINES = Deadlines.for_preset(store.PRESET_DEFAULT)


def baselines(curves: Iterable[Curve]) -> list[Curve]:
    """Return healthy curves that are long enough, the first in the order of their names."""
    healthy = (
        curve
        for curve in curves
        if not curve.windows and curve.family not in (MIXUP, POLICY) and len(curve.rows) >= _LEAST_ROWS
    )
    return list(islice(healthy, BASELINES))


def synthetic_score(curves: Iterable[Curve]) -> dict[str, str | int]:
    """Return, for each harm, in how many of the baselines it is reported; and what is reported without harm."""
    healthy = baselines(curves)
    figures: dict[str, str | int] = {
        f"doubling over {ramp}": _share(_is_found(_ramp(curve, ramp)) for curve in healthy) for ramp in RAMPS
    }
    figures["stairs down, then a spike"] = _share(_is_found(_stairs(curve, 0.9)) for curve in healthy)
    figures["stairs up, then a spike"] = _share(_is_found(_stairs(curve, 1.03)) for curve in healthy)
    for ramp in DIVERGENCES:
        figures[f"doubled within {ramp} and stays: diverged"] = _share(
            _has_diverged(_ramp(one, ramp)) for one in healthy
        )
    figures["high for 30: diverged"] = _share(_has_diverged(_bump(curve)) for curve in healthy)
    figures["bad resume"] = _share(resume_alarms(curve, BAD_RESUME_RATIO) > 0 for curve in healthy)
    figures["good resume: false alarms"] = sum(resume_alarms(curve, 1.0) for curve in healthy)
    figures["change of cadence: false"] = sum(missing_alarms(_changed(*periods)) for periods in CADENCES)
    figures["loss gone, norm not: found"] = _share(missing_alarms(_gone(period)) == 1 for period, _ in CADENCES)
    return figures


def _share(found: Iterable[bool]) -> str:
    known = list(found)
    return f"{sum(known)} of {len(known)}"


def _views(losses: Sequence[float | None], first: int = 0) -> list[StepView]:
    return [
        StepView(float(step), summary_of(step, Row(step, loss)), _DEADLINES, {})
        for step, loss in enumerate(losses, first)
    ]


def _losses(curve: Curve) -> list[float]:
    return [row.loss for row in curve.rows[:_LEAST_ROWS] if row.loss is not None]


def _is_found(losses: Sequence[float]) -> bool:
    """Return whether a harm that begins at ``ONSET`` is reported after that, as an alarm or as a note."""
    trial = Trial(Curve("synthetic", ()))
    feed(trial, number_detectors(), _views(losses))
    return any(alarm.row >= ONSET for alarm in trial.of(_NOTES))


def _has_diverged(losses: Sequence[float]) -> bool:
    """Return whether a divergence is reported, if the last loss of ``losses`` is that of the 200 rows after them."""
    trial = Trial(Curve("synthetic", ()))
    feed(trial, number_detectors(), _views([*losses, *[losses[-1]] * _STAY_ROWS]))
    return any(alarm.row >= ONSET for alarm in trial.of(("loss_divergence",)))


def _bump(curve: Curve) -> list[float]:
    """Return losses that are high for 30 rows."""
    rows = range(ONSET, ONSET + _SPIKE_ROWS)
    losses = _losses(curve)[: ONSET + 300]
    return [loss * _SPIKE_RATIO if row in rows else loss for row, loss in enumerate(losses)]


def _ramp(curve: Curve, rows: int) -> list[float]:
    losses = _losses(curve)[: ONSET + rows + 100]
    return [loss * (1.0 + min(1.0, max(0, row - ONSET) / rows)) for row, loss in enumerate(losses)]


def _stairs(curve: Curve, ratio: float) -> list[float]:
    """Return losses that change by a step every 100 rows, and jump for 30 rows shortly after one."""
    onset = ONSET + 20
    losses = [loss * ratio ** (row // _STAIR_ROWS) for row, loss in enumerate(_losses(curve)[: onset + 100])]
    return [loss * _SPIKE_RATIO if onset <= row < onset + _SPIKE_ROWS else loss for row, loss in enumerate(losses)]


def resume_alarms(curve: Curve, ratio: float) -> int:
    """Return how many alarms follow within 32 steps of a restart that undoes 10 steps."""
    losses = _losses(curve)
    trial = Trial(curve)
    detectors = feed(trial, number_detectors(), _views(losses[:ONSET]))
    after_step = ONSET - _UNDONE_ROWS - 1
    restarted = [detector.restarted(after_step) for detector in detectors]
    resumed = [loss * ratio for loss in losses[after_step + 1 : after_step + 1 + _RESUME_ROWS]]
    known = len(trial.alarms)
    feed(trial, restarted, _views(resumed, after_step + 1))
    return sum(alarm.kind in LOSS_ALARMS for alarm in trial.alarms[known:])


def _changed(before: int, after: int) -> Iterator[Row]:
    """Yield the steps of a run that reports its loss with its norm, and changes how often."""
    for period in (before, after):
        for step in range(period * _REPORTS):
            yield Row(step, 2.0, 0.5) if step % period == 0 else Row(step, None)


def _gone(period: int) -> Iterator[Row]:
    """Yield the steps of a run that reports its norm at each step, and its loss at some steps and then no more."""
    for step in range(period * _REPORTS):
        yield Row(step, 2.0 if step % period == 0 else None, 0.5)
    for step in range(7 * period + LIMIT_STEPS):
        yield Row(step, None, 0.5)


def missing_alarms(rows: Iterable[Row]) -> int:
    """Return how often a loss is reported as missing."""
    detector: Detector = MissingLoss()
    alarms = 0
    for step, row in enumerate(rows):
        result = detector.see_step(StepView(float(step), summary_of(step, row), _DEADLINES, {}))
        detector, alarms = result.next, alarms + len(result.findings)
    return alarms
