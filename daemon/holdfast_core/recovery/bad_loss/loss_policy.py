"""What to do about a bad loss: counts each tier, and takes its action once the budget of the tier is used up.

Blips, spikes and slow rises are counted one by one. A step that is done again after a restart is not counted again; a
bad resume is new, and counts. Divergence and losses that are not finite are counted in reported losses in a row; a loss
that is back, or finite, sets the count to 0. Steps without a loss, and steps that the loss scaler has skipped, change
no count.

The counts are in the record, so that they outlive a restart of the ranks and a change of the leader.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast_core import detection, incidents
from holdfast_core.checkpointing import proven_steps
from holdfast_core.detectors.framework import Finding
from holdfast_core.detectors.numbers.loss_divergence import LossDivergence
from holdfast_core.detectors.numbers.loss_spike import LossSpike
from holdfast_core.detectors.numbers.non_finite import NonFinite
from holdfast_core.reading.attention import bad_loss_incident
from holdfast_core.recovery import response
from holdfast_core.recovery.bad_loss import loss_actions
from holdfast_core.texts.render import write
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import GRADIENT, rule_of

LOSS = "loss"
"""Name of the loss among the quantities that are not finite."""

_TIER_OF = {
    store.VERDICT_KIND_LOSS_SPIKE: store.LOSS_TIER_SPIKE,
    store.VERDICT_KIND_LOSS_RISE: store.LOSS_TIER_SLOW_RISE,
    store.VERDICT_KIND_LOSS_DIVERGENCE: store.LOSS_TIER_DIVERGENCE,
    store.VERDICT_KIND_NON_FINITE: store.LOSS_TIER_NON_FINITE,
}


@dataclass(frozen=True)
class Noted:
    """A finding in a step, and its incident."""

    finding: Finding
    incident: store.Incident


def is_finite_loss(summary: store.StepSummary) -> bool | None:
    """Return whether the loss of a step is finite on all ranks that report one; None: no rank does.

    A loss in a step that the loss scaler has skipped says nothing: it counts as not reported.
    """
    if any(bad.quantity == LOSS for bad in summary.nonfinite):
        return None if summary.overflow else False
    return True if summary.loss_count and math.isfinite(summary.loss_sum) else None


def judge(tick: Tick, summary: store.StepSummary, noted: Sequence[Noted]) -> None:
    """Count what a step shows of each tier, and take the actions whose budgets are used up."""
    is_finite = is_finite_loss(summary)
    for one in noted:
        _mark_tier(tick, one.incident)
    if is_finite is None:
        return
    before = tick.record.loss_counts
    is_new = not before.HasField("judged_step") or summary.step > before.judged_step
    with tick.edit_record() as record:
        _count_loss(record.loss_counts, summary, is_finite=is_finite)
        if is_finite:
            record.proven.before_step = summary.step
    proven_steps.mark_newest(tick)
    _judge_blip(tick, summary, is_new=is_new)
    for one in noted:
        _judge_times(tick, one, is_new=is_new)
    _judge_divergence(tick, noted, is_finite=is_finite)
    _judge_nonfinite(tick, summary)
    if not is_finite:
        _name_good_checkpoint(tick)


def _name_good_checkpoint(tick: Tick) -> None:
    """Write into the incident which checkpoint to go back to: the newest proven one, also if it was committed later."""
    incident, proven = bad_loss_incident(tick.state), tick.record.proven
    good = proven_steps.newest_committed(tick, proven.before_step) if proven.HasField("before_step") else None
    if incident is None or good is None or incident.verdict.non_finite.good_checkpoint == good:
        return
    with incidents.edit(tick, incident) as edited:
        edited.verdict.non_finite.good_checkpoint = good
        write(edited.verdict)


def _count_loss(counts: store.LossCounts, summary: store.StepSummary, *, is_finite: bool) -> None:
    counts.judged_step = max(summary.step, counts.judged_step if counts.HasField("judged_step") else summary.step)
    if is_finite:
        counts.finite_step, counts.finite_loss = summary.step, summary.loss_sum / summary.loss_count
        counts.nonfinite, counts.nonfinite_answered = 0, False
        counts.ClearField("nonfinite_since")
        return
    counts.nonfinite += 1
    if not counts.HasField("nonfinite_since") or summary.step < counts.nonfinite_since:
        counts.nonfinite_since = summary.step


def _judge_blip(tick: Tick, summary: store.StepSummary, *, is_new: bool) -> None:
    reading = tick.state.detector(LossSpike).blip
    if reading is None or not is_new:
        return
    with tick.edit_record() as record:
        record.loss_counts.blips += 1
    rule = rule_of(tick.state.spec, store.LOSS_TIER_BLIP)
    if rule.action == store.LOSS_ACTION_NOTE or tick.record.loss_counts.blips <= rule.budget:
        return
    detail = store.LossSpikeDetail(
        loss=summary.loss_sum / summary.loss_count,
        level=reading.level,
        zscore=reading.zscore,
        high_steps=1,
        of_steps=1,
    )
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_LOSS_SPIKE, step=summary.step, confidence_ratio=1.0, loss_spike=detail
    )
    write(verdict)
    with incidents.edit(tick, incidents.note_incident(tick, verdict)) as edited:
        edited.loss_tier = store.LOSS_TIER_BLIP
    loss_actions.answer(tick, edited, store.LOSS_TIER_BLIP, tick.record.loss_counts.blips, summary.step)


def _judge_times(tick: Tick, one: Noted, *, is_new: bool) -> None:
    """Count a spike or a slow rise."""
    verdict = one.incident.verdict
    is_resume = verdict.loss_spike.HasField("resumed_after")
    if not (is_new or is_resume):
        return
    if verdict.kind == store.VERDICT_KIND_LOSS_SPIKE:
        with tick.edit_record() as record:
            record.loss_counts.spikes += 1
        count, tier = tick.record.loss_counts.spikes, store.LOSS_TIER_SPIKE
    elif verdict.kind == store.VERDICT_KIND_LOSS_RISE:
        with tick.edit_record() as record:
            record.loss_counts.rises += 1
        count, tier = tick.record.loss_counts.rises, store.LOSS_TIER_SLOW_RISE
    else:
        return
    if count > rule_of(tick.state.spec, tier).budget:
        good = one.finding.proven_step
        loss_actions.answer(tick, one.incident, tier, count, verdict.step if good is None else good)


def _judge_divergence(tick: Tick, noted: Sequence[Noted], *, is_finite: bool) -> None:
    """Count the losses since a divergence was found. A loss that is not finite has not come back either."""
    watch, counts = tick.state.detector(LossDivergence), tick.record.loss_counts
    if not (watch.has_diverged or counts.diverged):
        return
    # A leader that has just begun does not know of a divergence, and neither does one after a jump of the learning
    # rate. Both count as a loss that is back: a run is not stopped while that is in doubt.
    is_back = is_finite and not watch.has_diverged
    with tick.edit_record() as record:
        record.loss_counts.diverged = 0 if is_back else counts.diverged + 1
        record.loss_counts.divergence_answered = counts.divergence_answered and not is_back
    counts = tick.record.loss_counts
    tier = store.LOSS_TIER_DIVERGENCE
    if counts.divergence_answered or counts.diverged <= rule_of(tick.state.spec, tier).budget or is_back:
        return
    found = [one.incident for one in noted if one.incident.verdict.kind == store.VERDICT_KIND_LOSS_DIVERGENCE]
    incident = found[-1] if found else _newest(tick, tier)
    if incident is not None:
        with tick.edit_record() as record:
            record.loss_counts.divergence_answered = True
        loss_actions.answer(tick, incident, tier, counts.diverged, incident.verdict.loss_divergence.usual_step)


def _judge_nonfinite(tick: Tick, summary: store.StepSummary) -> None:
    counts, tier = tick.record.loss_counts, store.LOSS_TIER_NON_FINITE
    rule = rule_of(tick.state.spec, tier)
    if counts.nonfinite_answered or counts.nonfinite <= rule.budget or not counts.nonfinite:
        return
    if rule.action == store.LOSS_ACTION_NOTE:  # the detector limits what is only noted
        return
    with tick.edit_record() as record:
        record.loss_counts.nonfinite_answered = True
    proven = tick.record.proven
    good = proven.before_step if proven.HasField("before_step") else None
    incident = bad_loss_incident(tick.state)
    if incident is None or incident.notify:  # noted by an earlier leader, or the detector did not report the episode
        incident = response.note(tick, _fresh_finding(tick, summary, good))
        _mark_tier(tick, incident)
        incident = tick.state.incidents[incident.id]
    loss_actions.answer(tick, incident, tier, counts.nonfinite, good)


def _fresh_finding(tick: Tick, summary: store.StepSummary, good: int | None) -> Finding:
    """Return what the detector would have reported at the first loss of the row: that is the step to go back from.

    The present step stands in for that one, except for gradients: those of a rank's own belong to their own step.
    ``good``: step before which every state is good; None: no state of this start is known to be good.
    """
    first = store.StepSummary()
    first.CopyFrom(summary)
    first.step = tick.record.loss_counts.nonfinite_since
    del first.nonfinite[:]
    first.nonfinite.extend(bad for bad in summary.nonfinite if bad.quantity != GRADIENT)
    (finding,) = NonFinite().see_step(detection.step_view(tick, first)).findings
    return replace(finding, proven_step=good)


def _newest(tick: Tick, tier: "store.LossTier") -> store.Incident | None:
    """Return the newest incident of a tier that this leader knows."""
    known = (incident for incident in tick.state.incidents.values() if incident.loss_tier == tier)
    return max(known, key=lambda incident: incident.detected_unix_s, default=None)


def _mark_tier(tick: Tick, incident: store.Incident) -> None:
    """Write into an incident which tier of the loss it is about, if it is about the loss."""
    verdict = incident.verdict
    tier = _TIER_OF.get(verdict.kind)
    of_loss = verdict.kind != store.VERDICT_KIND_NON_FINITE or LOSS in (
        verdict.non_finite.quantity,
        *verdict.non_finite.also,
    )
    if tier is not None and of_loss:
        with incidents.edit(tick, tick.state.incidents[incident.id]) as edited:
            edited.loss_tier = tier
