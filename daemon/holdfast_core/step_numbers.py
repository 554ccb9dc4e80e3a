"""Merges the numbers that nodes send of one step, and uses them: for the status, detectors, deadlines and counters."""

from collections.abc import MutableSequence
from dataclasses import replace

from holdfast_core import detection
from holdfast_core.accounting import ledger
from holdfast_core.detectors.numbers.loss_spike import LossSpike
from holdfast_core.detectors.numbers.non_finite import unexpected
from holdfast_core.model import Logged, StepCounted, Telemetry, Totals, counted
from holdfast_core.recovery import response, standstills
from holdfast_core.recovery.bad_loss import loss_policy
from holdfast_core.tick import Tick
from holdfast_proto.limits import MOST_LOGGED_NAMES
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import MEAN_FIELDS

RATE_SMOOTHING = 0.2
"""Weight of the newest step in the tokens/s shown."""

_ADDED = ("loss_sum", "loss_count", "tokens", "dropped_tokens")
_LARGEST = ("duration_s", "ended_unix_s")


def merge(one: store.StepSummary, other: store.StepSummary) -> store.StepSummary:
    """Return one summary of the ranks of two. Numbers that are equal on all ranks are taken from ``other``."""
    merged = store.StepSummary()
    merged.CopyFrom(one)
    merged.MergeFrom(other)
    for name in _ADDED:
        setattr(merged, name, getattr(one, name) + getattr(other, name))
    for name in _LARGEST:
        setattr(merged, name, max(getattr(one, name), getattr(other, name)))
    for name in MEAN_FIELDS:
        mean, more = getattr(one, name), getattr(other, name)
        if mean.count and more.count:
            getattr(merged, name).CopyFrom(store.Mean(sum=mean.sum + more.sum, count=mean.count + more.count))
    for phase, spent_s in one.phase_s.items():
        merged.phase_s[phase] = max(spent_s, merged.phase_s[phase])
    if merged.HasField("replay"):
        merged.replay.duration_s = max(one.replay.duration_s, other.replay.duration_s)
    _join(merged.replicas)
    _join(merged.plain)
    return merged


def count_step(tick: Tick, summary: store.StepSummary) -> None:
    """Show a step to the detectors, learn deadlines, and add it to telemetry, totals, history and account."""
    loss = summary.loss_sum / summary.loss_count if summary.loss_count else None
    is_new = ledger.count_step(tick, summary)
    if summary.step > tick.record.newest_step:
        with tick.edit_record() as record:
            record.newest_step = summary.step
    tick.actions.append(StepCounted(summary))
    noted = [
        loss_policy.Noted(finding, response.note(tick, finding)) for finding in detection.look_at_step(tick, summary)
    ]
    loss_policy.judge(tick, summary, noted)
    standstills.learn(tick, summary)
    tick.state = replace(
        tick.state,
        deadlines=tick.state.deadlines.observe(summary.duration_s, summary.phase_s),
        telemetry=_telemetry(tick, summary, loss),
        totals=_totals(tick.state.totals, summary, is_new=is_new),
    )


def see_logged(tick: Tick, numbers_logged: store.NumbersLogged) -> None:
    """Keep the newest numbers that the script logs. Of several ranks that log a name, the lowest counts."""
    telemetry, generation = tick.state.telemetry, tick.record.generation
    logged = dict(telemetry.logged)
    for number in numbers_logged.numbers:
        known = logged.get(number.name)
        if known is None and len(logged) >= MOST_LOGGED_NAMES:
            logged = {name: one for name, one in logged.items() if one.generation == generation}
        if known is None and len(logged) >= MOST_LOGGED_NAMES:
            continue
        if known is None or known.generation != generation or number.rank <= known.rank:
            logged[number.name] = Logged(number.value, number.step, number.rank, generation)
    tick.state = replace(tick.state, telemetry=replace(telemetry, logged=logged))


def _join(sides: MutableSequence[store.ReplicaHashes]) -> None:
    """Join the entries of the same part with the same hash."""
    joined: dict[tuple[str, int], store.ReplicaHashes] = {}
    for side in sides:
        same = joined.setdefault((side.part, side.hash), side)
        if same is not side:
            same.ranks.extend(side.ranks)
    if len(joined) < len(sides):
        kept = [*joined.values()]
        del sides[:]
        sides.extend(kept)


def _telemetry(tick: Tick, summary: store.StepSummary, loss: float | None) -> Telemetry:
    telemetry = tick.state.telemetry
    rate = telemetry.tokens_per_s
    if summary.tokens and summary.duration_s:
        newest = summary.tokens / summary.duration_s
        rate = newest if rate is None else rate + RATE_SMOOTHING * (newest - rate)
    if loss is not None:
        zscore = tick.state.detector(LossSpike).zscore
        telemetry = replace(telemetry, loss=loss, loss_step=summary.step, loss_zscore=zscore)
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
        replay_s=summary.replay.duration_s or telemetry.replay_s,
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
