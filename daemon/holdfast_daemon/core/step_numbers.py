"""Takes in the numbers of one step of the whole run: shows them, counts them, and tells what is wrong with them."""

import dataclasses
from collections.abc import Iterable

from holdfast_daemon.core import checkpoint_orders, incidents
from holdfast_daemon.core.duplicates import Duplicate
from holdfast_daemon.core.loss import LossFinding
from holdfast_daemon.core.model import Telemetry, Totals
from holdfast_daemon.core.overflow import LIMIT_STEPS
from holdfast_daemon.core.step_summary import MEANS
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store

RATE_SMOOTHING = 0.2
"""Weight of the newest step in the tokens/s shown."""

_COMMON = ("validation_loss", "grad_norm", "learning_rate", "update_norm", "loss_scale")
_NORMS = ("grad_norm", "update_norm")


def count_step(turn: Turn, summary: store.StepSummary) -> None:
    """Let one step of the whole run into telemetry, deadlines, totals and the watches."""
    state, step = turn.state, summary.step
    loss = summary.loss_sum / summary.loss_count if summary.loss_count else None
    is_new = step > turn.record.newest_step
    if is_new:
        turn.record_update(newest_step=step)
    loss_watch, finding = state.loss_watch.observe(step, loss)
    overflow_watch, is_loop = state.overflow_watch.observe(summary.overflow)
    duplicate_watch, duplicate = state.duplicate_watch.observe(step, summary.samples)
    turn.update(
        loss_watch=loss_watch,
        overflow_watch=overflow_watch,
        duplicate_watch=duplicate_watch,
        deadlines=state.deadlines.observe(summary.duration_s, summary.phase_s),
        telemetry=_telemetry(state.telemetry, summary, loss, finding),
        totals=_totals(state.totals, summary, is_new=is_new),
    )
    _tell_nonfinite(turn, summary)
    _tell_loss(turn, step, finding)
    if is_loop:
        _tell_overflow_loop(turn, step)
    if duplicate is not None:
        _tell_duplicate(turn, duplicate)


def _telemetry(telemetry: Telemetry, summary: store.StepSummary, loss: float | None, finding: LossFinding) -> Telemetry:
    rate = telemetry.tokens_per_s
    if summary.tokens and summary.duration_s:
        newest = summary.tokens / summary.duration_s
        rate = newest if rate is None else rate + RATE_SMOOTHING * (newest - rate)
    changes: dict[str, float | None] = {
        quantity: getattr(summary, quantity) for quantity in _COMMON if summary.HasField(quantity)
    }
    for quantity in MEANS:
        mean: store.Mean = getattr(summary, quantity)
        if mean.count:
            changes[quantity] = mean.sum / mean.count
    if loss is not None:
        changes |= {"loss": loss, "loss_step": summary.step, "loss_zscore": finding.zscore}
    return dataclasses.replace(telemetry, tokens_per_s=rate, step_s=summary.duration_s, **changes)  # type: ignore[arg-type]


def _totals(totals: Totals, summary: store.StepSummary, *, is_new: bool) -> Totals:
    return dataclasses.replace(
        totals,
        steps=totals.steps + 1,
        tokens=totals.tokens + summary.tokens,
        dropped_tokens=totals.dropped_tokens + summary.dropped_tokens,
        skipped_steps=totals.skipped_steps + summary.overflow,
        productive_s=totals.productive_s + (summary.duration_s if is_new else 0.0),
    )


def _tell_nonfinite(turn: Turn, summary: store.StepSummary) -> None:
    # A skipped step's norms are not finite by nature: that it was skipped says it all.
    told = [bad for bad in summary.nonfinite if not (summary.overflow and bad.quantity in _NORMS)]
    for bad in told:
        turn.update(totals=turn.state.totals.count("nonfinite", bad.quantity))
    if told and turn.once("non-finite"):
        first = told[0]
        message = f"{first.quantity} is not finite since step {summary.step}, first seen by rank {first.rank}"
        _note(turn, store.VERDICT_KIND_NON_FINITE, message, summary.step, [first.rank])


def _tell_loss(turn: Turn, step: int, finding: LossFinding) -> None:
    for kind in ("blip", "spike", "missing"):
        if getattr(finding, kind):
            turn.update(totals=turn.state.totals.count("anomalies", kind))
    if finding.missing and turn.once("missing"):
        message = f"no loss has been reported since step {turn.state.telemetry.loss_step}"
        _note(turn, store.VERDICT_KIND_NON_FINITE, message, step)
    if finding.spike:
        message = (
            f"loss spike at step {step}: {turn.state.telemetry.loss:.4g}, {finding.zscore:.0f} robust standard"
            " deviations above its median, in 3 of 5 steps"
        )
        incident = _note(turn, store.VERDICT_KIND_LOSS_SPIKE, message, step)
        checkpoint_orders.keep_newest_before(turn, finding.proven_step, incident)


def _tell_overflow_loop(turn: Turn, step: int) -> None:
    if turn.once("overflow loop"):
        scale = turn.state.telemetry.loss_scale
        at_scale = "" if scale is None else f" at a loss scale of {scale:g}"
        message = (
            f"the last {LIMIT_STEPS} steps, up to step {step}, were all skipped{at_scale}: gradients are not finite"
        )
        _note(turn, store.VERDICT_KIND_OVERFLOW_LOOP, message, step)


def _tell_duplicate(turn: Turn, duplicate: Duplicate) -> None:
    turn.update(totals=dataclasses.replace(turn.state.totals, duplicate_steps=turn.state.totals.duplicate_steps + 1))
    if not turn.once("duplicate samples"):
        return
    if duplicate.earlier_step == duplicate.step:
        indices = ", ".join(map(str, duplicate.indices))
        message = f"data-parallel indices {indices} trained on the same samples in step {duplicate.step}"
    else:
        message = f"step {duplicate.step} trained again on samples of step {duplicate.earlier_step}"
    _note(turn, store.VERDICT_KIND_DUPLICATE_SAMPLES, message, duplicate.step, duplicate.ranks)


def _note(
    turn: Turn, kind: "store.VerdictKind", message: str, step: int, culprits: Iterable[int] = ()
) -> store.Incident:
    verdict = store.Verdict(kind=kind, culprits=culprits, message=message, step=step, confidence_ratio=1.0)
    incident = incidents.note_incident(turn, verdict)
    order = store.GatherEvidence(incident=incident.id)
    turn.send(turn.record.nodes, lambda _: store.NodeCommand(gather_evidence=order))
    return incident
