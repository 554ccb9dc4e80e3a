"""Uses the numbers of one step of the whole run: for the status, the detectors, the deadlines and the counters."""

from dataclasses import replace

from holdfast_daemon.core import detection
from holdfast_daemon.core.detectors.numbers.loss_spike import LossSpike
from holdfast_daemon.core.detectors.numbers.non_finite import unexpected
from holdfast_daemon.core.model import Telemetry, Totals, counted
from holdfast_daemon.core.recovery import response, standstills
from holdfast_daemon.core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

RATE_SMOOTHING = 0.2
"""Weight of the newest step in the tokens/s shown."""


def count_step(tick: Tick, summary: store.StepSummary) -> None:
    """Show a step to the detectors, learn deadlines from it, and add it to telemetry and totals."""
    loss = summary.loss_sum / summary.loss_count if summary.loss_count else None
    is_new = summary.step > tick.record.newest_step
    if is_new:
        with tick.edit_record() as record:
            record.newest_step = summary.step
    for finding in detection.look_at_step(tick, summary):
        response.note(tick, finding)
    standstills.learn(tick, summary)
    tick.state = replace(
        tick.state,
        deadlines=tick.state.deadlines.observe(summary.duration_s, summary.phase_s),
        telemetry=_telemetry(tick, summary, loss),
        totals=_totals(tick.state.totals, summary, is_new=is_new),
    )


def _telemetry(tick: Tick, summary: store.StepSummary, loss: float | None) -> Telemetry:
    telemetry = tick.state.telemetry
    rate = telemetry.tokens_per_s
    if summary.tokens and summary.duration_s:
        newest = summary.tokens / summary.duration_s
        rate = newest if rate is None else rate + RATE_SMOOTHING * (newest - rate)
    if loss is not None:
        spike = tick.state.detectors[LossSpike.name]
        assert isinstance(spike, LossSpike)
        telemetry = replace(telemetry, loss=loss, loss_step=summary.step, loss_zscore=spike.zscore)
    return replace(
        telemetry,
        tokens_per_s=rate,
        step_s=summary.duration_s,
        validation_loss=summary.validation_loss if summary.HasField("validation_loss") else telemetry.validation_loss,
        grad_norm=summary.grad_norm if summary.HasField("grad_norm") else telemetry.grad_norm,
        learning_rate=summary.learning_rate if summary.HasField("learning_rate") else telemetry.learning_rate,
        update_norm=summary.update_norm if summary.HasField("update_norm") else telemetry.update_norm,
        loss_scale=summary.loss_scale if summary.HasField("loss_scale") else telemetry.loss_scale,
        mfu=_mean(summary.mfu, telemetry.mfu),
        pipeline_bubble=_mean(summary.pipeline_bubble, telemetry.pipeline_bubble),
        balance_loss=_mean(summary.balance_loss, telemetry.balance_loss),
    )


def _mean(mean: store.Mean, before: float | None) -> float | None:
    return mean.sum / mean.count if mean.count else before


def _totals(totals: Totals, summary: store.StepSummary, *, is_new: bool) -> Totals:
    nonfinite = totals.nonfinite
    for bad in unexpected(summary):
        nonfinite = counted(nonfinite, bad.quantity)
    return replace(
        totals,
        nonfinite=nonfinite,
        steps=totals.steps + 1,
        tokens=totals.tokens + summary.tokens,
        dropped_tokens=totals.dropped_tokens + summary.dropped_tokens,
        skipped_steps=totals.skipped_steps + summary.overflow,
        productive_s=totals.productive_s + (summary.duration_s if is_new else 0.0),
    )
