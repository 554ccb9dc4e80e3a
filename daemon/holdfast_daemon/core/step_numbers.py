"""Takes in the numbers of one step of the whole run: shows them, to people and to the detectors, and counts them."""

import dataclasses

from holdfast_daemon.core import detection, standstill
from holdfast_daemon.core.detectors.numbers.loss_spike import LossSpike
from holdfast_daemon.core.detectors.numbers.non_finite import unexpected
from holdfast_daemon.core.model import Telemetry, Totals
from holdfast_daemon.core.recovery import response
from holdfast_daemon.core.step_summary import MEANS
from holdfast_daemon.core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

RATE_SMOOTHING = 0.2
"""Weight of the newest step in the tokens/s shown."""

_COMMON = ("validation_loss", "grad_norm", "learning_rate", "update_norm", "loss_scale")


def count_step(tick: Tick, summary: store.StepSummary) -> None:
    """Let one step of the whole run into telemetry, deadlines, totals and the detectors."""
    loss = summary.loss_sum / summary.loss_count if summary.loss_count else None
    is_new = summary.step > tick.record.newest_step
    if is_new:
        tick.record_update(newest_step=summary.step)
    for finding in detection.look_at_step(tick, summary):
        response.note(tick, finding)
    standstill.learn(tick, summary)
    tick.update(
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
    changes: dict[str, float | None] = {
        quantity: getattr(summary, quantity) for quantity in _COMMON if summary.HasField(quantity)
    }
    for quantity in MEANS:
        mean: store.Mean = getattr(summary, quantity)
        if mean.count:
            changes[quantity] = mean.sum / mean.count
    if loss is not None:
        spike = tick.state.detectors[LossSpike.name]
        assert isinstance(spike, LossSpike)
        changes |= {"loss": loss, "loss_step": summary.step, "loss_zscore": spike.zscore}
    return dataclasses.replace(telemetry, tokens_per_s=rate, step_s=summary.duration_s, **changes)  # type: ignore[arg-type]


def _totals(totals: Totals, summary: store.StepSummary, *, is_new: bool) -> Totals:
    for bad in unexpected(summary):
        totals = totals.count("nonfinite", bad.quantity)
    return dataclasses.replace(
        totals,
        steps=totals.steps + 1,
        tokens=totals.tokens + summary.tokens,
        dropped_tokens=totals.dropped_tokens + summary.dropped_tokens,
        skipped_steps=totals.skipped_steps + summary.overflow,
        productive_s=totals.productive_s + (summary.duration_s if is_new else 0.0),
    )
