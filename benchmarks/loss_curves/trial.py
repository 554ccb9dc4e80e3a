"""Shows curves to the number detectors, as the core would."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.loss_curves.curves import Curve, Row
from holdfast_core.deadlines import Deadlines
from holdfast_core.detectors import registry
from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.numbers.missing_loss import MissingLoss
from holdfast_core.detectors.view import StepView
from holdfast_core.naming import kind_name
from holdfast_proto.v1 import store_pb2 as store

_DEADLINES = Deadlines.for_preset(store.PRESET_DEFAULT)
_MOST_STEPS = 200_000
"""Steps of a curve that are shown to ``missing_loss``."""
_NOT_FINITE = re.compile(r"\b(inf|nan)\b")

LOSS_ALARMS = ("loss_spike",)
"""Kinds that call a person about the loss."""


@dataclass(frozen=True)
class Alarm:
    """A verdict about a row."""

    row: int
    kind: str
    proven_step: int | None
    message: str


@dataclass
class Trial:
    """What the detectors report about one curve."""

    curve: Curve
    alarms: list[Alarm] = field(default_factory=list)
    unusual_numbers: int = 0
    """Texts and z-scores that are not finite."""

    def of(self, kinds: Iterable[str]) -> list[Alarm]:
        """Return the alarms of some kinds."""
        wanted = tuple(kinds)
        return [alarm for alarm in self.alarms if alarm.kind in wanted]


def number_detectors() -> list[Detector]:
    """Return the detectors of the family ``numbers`` in their first state, but the one that needs real steps."""
    return [
        kind()
        for kind in registry.ALL
        if ".detectors.numbers." in kind.__module__ and kind.name not in (MissingLoss.name,)
    ]


def summary_of(step: int, row: Row) -> store.StepSummary:
    """Return a row as the numbers of a step of the whole run."""
    summary = store.StepSummary(step=step, generation=1, duration_s=1.0)
    if row.loss is not None and math.isfinite(row.loss):
        summary.loss_sum, summary.loss_count = row.loss, 1
    elif row.loss is not None:
        summary.nonfinite.add(rank=0, quantity="loss")
    for name in ("grad_norm", "learning_rate"):
        value = getattr(row, name)
        if value is not None:
            setattr(summary, name, value)
    return summary


def try_curve(curve: Curve) -> Trial:
    """Show all rows to the detectors. The step of a row is its index: steps that were not logged are left out."""
    trial = Trial(curve)
    views = [StepView(float(index), summary_of(index, row), _DEADLINES, {}) for index, row in enumerate(curve.rows)]
    feed(trial, number_detectors(), views)
    trial.alarms += _missing(curve.rows)
    return trial


def feed(trial: Trial, detectors: Sequence[Detector], views: Iterable[StepView]) -> list[Detector]:
    """Show steps to detectors, and add what they report to ``trial``. Return the detectors after that."""
    present = list(detectors)
    for view in views:
        results = [detector.see_step(view) for detector in present]
        present = [result.next for result in results]
        for result in results:
            for finding in result.findings:
                kind = kind_name(finding.verdict.kind)
                trial.alarms.append(Alarm(view.step, kind, finding.proven_step, finding.verdict.message))
                trial.unusual_numbers += _NOT_FINITE.search(finding.verdict.message) is not None
        trial.unusual_numbers += sum(not math.isfinite(getattr(one, "zscore", 0.0)) for one in present)
    return present


def _missing(rows: Sequence[Row]) -> list[Alarm]:
    """Show every step of a run to ``missing_loss``: those between two rows have no loss."""
    by_step: Mapping[int, Row] = {row.step: row for row in rows}
    first = min(by_step)
    last = min(max(by_step), first + _MOST_STEPS)
    detector: Detector = MissingLoss()
    alarms = []
    for step in range(first, last + 1):
        summary = summary_of(step, by_step.get(step, Row(step, None)))
        result = detector.see_step(StepView(float(step), summary, _DEADLINES, {}))
        detector = result.next
        alarms += [Alarm(step, "missing_loss", None, finding.verdict.message) for finding in result.findings]
    return alarms
