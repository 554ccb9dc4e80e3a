"""Shows the rows of a log to the core, as the daemon shows it the steps of a run, and collects what it finds.

The core runs as in a run: the same detectors, the same policy, the same texts. The policy notifies of every tier from
the first time on. A step that goes back is a resume: the steps after it are undone, and the run continues.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from holdfast_cli.loss_logs.log_rows import LogRow
from holdfast_cli.loss_logs.lost_loss import LossSearch, LostLoss
from holdfast_core import coordinator
from holdfast_core.detectors.numbers.gradient_explosion import GradientExplosion
from holdfast_core.detectors.numbers.loss_divergence import LossDivergence
from holdfast_core.detectors.numbers.loss_rise import LossRise
from holdfast_core.detectors.numbers.loss_spike import LossSpike
from holdfast_core.detectors.numbers.non_finite import NonFinite
from holdfast_core.model import CoreState, SaveIncident
from holdfast_core.naming import incident_number, kind_name
from holdfast_core.recovery import new_generation
from holdfast_core.step_numbers import count_step
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import DEFAULTS, TIER_WORDS

_DETECTORS = (NonFinite, LossSpike, LossRise, LossDivergence, GradientExplosion)
_INCIDENTS_KNOWN = 8
"""Incidents that the core may still refer to. Older ones are forgotten, so that a log may be of any length."""


@dataclass(frozen=True)
class LogFinding:
    """Something that is wrong with the loss, or another number, at a step."""

    tier: str
    """Word of the tier; "" if it is not about the loss."""
    kind: str
    """Kind of the verdict, or of a lost loss; with the quantity, of another number that is not finite."""
    row: int
    step: int
    loss: float | None
    """The loss, or the median that was judged."""
    level: float | None
    """What it was compared with."""
    zscore: float | None
    message: str


class LogJudge:
    """Judges rows, which are shown in the order of the file."""

    def __init__(self) -> None:
        spec = store.RunSpec(run="log", nodes=1, mode=store.MODE_OBSERVE, preset=store.PRESET_DEFAULT)
        for tier in DEFAULTS:
            getattr(spec.loss_policy, tier).CopyFrom(store.LossRule(action=store.LOSS_ACTION_NOTIFY, budget=0))
        state = coordinator.begin(spec)
        self._state: CoreState = replace(state, detectors={kind.name: kind() for kind in _DETECTORS})
        self._search = LossSearch()
        self._pending: LogRow | None = None
        self.losses = 0
        """Steps with a loss so far."""
        self.resumes = 0
        """Times that the step has gone back."""
        self.repeated_rows = 0
        """Rows that had the step and a loss of the row before: the first loss of a step counts."""

    def see(self, row: LogRow) -> Iterator[LogFinding]:
        """Take in a row, and yield what the rows before it show."""
        before = self._pending
        if before is not None and before.step == row.step:
            self.repeated_rows += before.loss is not None and row.loss is not None
            self._pending = _joined(before, row)
            return
        self._pending = row
        if before is not None:
            yield from self._judge(before)
            if row.step < before.step:
                self._resume(row.step - 1)

    def end(self) -> Iterator[LogFinding]:
        """Yield what the last row shows."""
        if self._pending is not None:
            yield from self._judge(self._pending)

    @property
    def last_finite_step(self) -> int | None:
        """Newest step with a finite loss, if the newest loss is not; else None."""
        counts = self._state.record.loss_counts
        return counts.finite_step if not self.ends_finite and counts.HasField("finite_step") else None

    @property
    def ends_finite(self) -> bool:
        """Whether the newest loss is finite."""
        return not self._state.record.loss_counts.HasField("nonfinite_since")

    @property
    def lost(self) -> LostLoss | None:
        """How the loss was lost, if the log ends without one or with 0."""
        return self._search.lost

    def _judge(self, row: LogRow) -> Iterator[LogFinding]:
        self.losses += row.loss is not None
        tick = Tick(self._state, float(self.losses))
        count_step(tick, _summary(row))
        known = tick.state.incidents
        kept = {name: known[name] for name in sorted(known, key=incident_number)[-_INCIDENTS_KNOWN:]}
        self._state = replace(tick.state, incidents=kept)
        saved = {action.incident.id: action.incident for action in tick.actions if isinstance(action, SaveIncident)}
        for incident in saved.values():
            if incident.state == store.INCIDENT_STATE_NOTED and incident.verdict.step == row.step:
                yield _finding(incident, row)
        lost = self._search.see(row)
        if lost is not None:
            yield _lost_finding(lost)

    def _resume(self, after_step: int) -> None:
        self.resumes += 1
        self._search.resume()
        tick = Tick(self._state, float(self.losses))
        with tick.edit_record() as record:
            record.generation += 1
        new_generation.forget(tick, after_step)
        self._state = tick.state


def _joined(one: LogRow, other: LogRow) -> LogRow:
    """Return a step's numbers from two rows: the first that is there counts."""
    missing = [field.name for field in fields(LogRow) if getattr(one, field.name) is None]
    return replace(one, **{name: getattr(other, name) for name in missing})


def _summary(row: LogRow) -> store.StepSummary:
    """Return a row as the numbers of a step of a run with one rank."""
    summary = store.StepSummary(step=row.step, duration_s=1.0)
    if row.loss is not None:
        summary.loss_sum, summary.loss_count = row.loss, 1
    for name in ("validation_loss", "grad_norm", "learning_rate"):
        value = getattr(row, name)
        if value is not None:
            setattr(summary, name, value)
    if row.tokens is not None and math.isfinite(row.tokens) and 0 <= row.tokens < 2**63:
        summary.tokens = int(row.tokens)
    for name in ("loss", "validation_loss", "grad_norm"):
        value = getattr(row, name)
        if value is not None and not math.isfinite(value):
            summary.nonfinite.add(rank=0, quantity=name)
    return summary


def _lost_finding(lost: LostLoss) -> LogFinding:
    """Return a lost loss as one that is not finite, which it hides in most runs."""
    tier, first = TIER_WORDS[store.LOSS_TIER_NON_FINITE], lost.first
    return LogFinding(tier, lost.kind, first.row, first.step, first.loss, None, None, lost.message)


def _finding(incident: store.Incident, row: LogRow) -> LogFinding:
    verdict = incident.verdict
    loss, level, zscore = row.loss, None, None
    match verdict.WhichOneof("detail"):
        case "loss_spike":
            loss, level, zscore = verdict.loss_spike.loss, verdict.loss_spike.level, verdict.loss_spike.zscore
        case "loss_rise":
            loss, level = verdict.loss_rise.loss, verdict.loss_rise.lowest
        case "loss_divergence":
            loss, level = verdict.loss_divergence.loss, verdict.loss_divergence.lowest
    tier, kind = TIER_WORDS.get(incident.loss_tier, ""), kind_name(verdict.kind)
    if not tier and verdict.kind == store.VERDICT_KIND_NON_FINITE:
        kind = f"{kind}_{verdict.non_finite.quantity}"
    return LogFinding(tier, kind, row.row, row.step, loss, level, zscore, verdict.message)
