"""Takes an observation in: nodes, events, telemetry. Decides nothing about ranks."""

import dataclasses

from holdfast_daemon.core import incidents
from holdfast_daemon.core.loss import LossFinding
from holdfast_daemon.core.model import Observation, Telemetry
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import Phase

RATE_SMOOTHING = 0.2
"""Weight of the newest step in the tokens/s shown."""


def absorb(turn: Turn, observation: Observation) -> None:
    """Fold an observation into the state."""
    turn.update(nodes=dict(observation.nodes))
    for event in observation.events:
        _event(turn, event)
    _progress(turn)
    _first_exit(turn)


def _event(turn: Turn, event: store.Event) -> None:
    match event.WhichOneof("kind"):
        case "step_summary":
            _merge_summary(turn, event.node, event.step_summary)
        case "checkpoint_committed":
            totals = turn.state.totals
            changed = dataclasses.replace(
                totals, checkpoints=totals.checkpoints + 1, last_checkpoint_unix_s=event.unix_s
            )
            turn.update(totals=changed)
        case "checkpoint_failed":
            message = f"checkpoint of step {event.checkpoint_failed.step} failed: {event.checkpoint_failed.reason}"
            _note_checkpoint(turn, message, event.checkpoint_failed.step)
        case "checkpoint_unreadable":
            step = event.checkpoint_unreadable.step
            record = store.CoordinatorState()
            record.CopyFrom(turn.record)
            record.unreadable_checkpoints.append(step)
            turn.update(record=record)
            _note_checkpoint(turn, event.checkpoint_unreadable.reason, step)
        case "snapshot_memory_refused":
            refused = event.snapshot_memory_refused
            message = (
                f"node {event.node}: snapshots need {refused.needed_bytes / 2**20:.0f} MiB and {refused.directory} has"
                f" {refused.free_bytes / 2**20:.0f} MiB free: checkpoints go straight to disk instead; make it larger,"
                " or name another with --shm-directory"
            )
            if turn.once(f"memory {event.node}"):
                _note_checkpoint(turn, message, turn.record.newest_step)
        case "evidence_captured":
            _evidence(turn, event.node, event.evidence_captured)
        case "command_refused":
            totals = turn.state.totals
            turn.update(totals=dataclasses.replace(totals, refused_commands=totals.refused_commands + 1))


def _note_checkpoint(turn: Turn, message: str, step: int) -> None:
    verdict = store.Verdict(kind=store.VERDICT_KIND_CHECKPOINT_FAILED, message=message, step=step, confidence_ratio=1.0)
    incidents.note_incident(turn, verdict)


def _evidence(turn: Turn, node: str, captured: store.EvidenceCaptured) -> None:
    """Keep the file list; let the dumps name the call that the wait-for graph could only count."""
    current = turn.state.incidents.get(captured.incident)
    if current is None:
        return
    incident = store.Incident()
    incident.CopyFrom(current)
    incident.evidence.extend(name for name in captured.files if name not in incident.evidence)
    verdict = incident.verdict
    for call in captured.pending:
        if call.group == verdict.group and call.seq == verdict.seq and call.op != verdict.op:
            verdict.message = verdict.message.replace(verdict.op, call.op)
            verdict.op = call.op
    incidents.save(turn, incident)
    if captured.incident == turn.record.open_incident:
        turn.update(evidence_from=turn.state.evidence_from | {node})


def _merge_summary(turn: Turn, node: str, summary: store.StepSummary) -> None:
    """Merge the nodes' summaries of one step; count it when all nodes have sent theirs."""
    state = turn.state
    if summary.generation != turn.record.generation or summary.step <= state.counted_steps.get(node, -1):
        return  # of a world that is gone, or sent twice
    turn.update(counted_steps={**state.counted_steps, node: summary.step})
    merged = store.StepSummary()
    if summary.step in state.pending_steps:
        merged.CopyFrom(state.pending_steps[summary.step])
    duration_s, ended_unix_s = merged.duration_s, merged.ended_unix_s
    loss_sum, loss_count, tokens = merged.loss_sum, merged.loss_count, merged.tokens
    merged.MergeFrom(summary)
    merged.duration_s = max(duration_s, summary.duration_s)
    merged.ended_unix_s = max(ended_unix_s, summary.ended_unix_s)
    merged.loss_sum, merged.loss_count = loss_sum + summary.loss_sum, loss_count + summary.loss_count
    merged.tokens = tokens + summary.tokens
    pending = {**state.pending_steps, summary.step: merged}
    sent = [turn.state.counted_steps.get(name, -1) for name in turn.record.nodes]
    complete = min(sent, default=-1)
    turn.update(pending_steps={step: value for step, value in pending.items() if step > complete})
    for step in sorted(step for step in pending if step <= complete):
        _count_step(turn, pending[step])


def _count_step(turn: Turn, summary: store.StepSummary) -> None:
    """Let one step of the whole run into telemetry, deadlines and the loss watch."""
    telemetry, totals = turn.state.telemetry, turn.state.totals
    loss = summary.loss_sum / summary.loss_count if summary.loss_count else None
    is_new = summary.step > turn.record.newest_step
    if is_new:
        turn.record_update(newest_step=summary.step)
    watch, finding = turn.state.loss_watch.observe(summary.step, loss)
    turn.update(
        loss_watch=watch,
        deadlines=turn.state.deadlines.observe(summary.duration_s, summary.phase_s),
        telemetry=_telemetry(telemetry, summary, loss, finding),
        totals=dataclasses.replace(
            totals,
            steps=totals.steps + 1,
            tokens=totals.tokens + summary.tokens,
            productive_s=totals.productive_s + (summary.duration_s if is_new else 0.0),
        ),
    )
    _judge_numbers(turn, summary, finding)


def _telemetry(telemetry: Telemetry, summary: store.StepSummary, loss: float | None, finding: LossFinding) -> Telemetry:
    rate = telemetry.tokens_per_s
    if summary.tokens and summary.duration_s:
        newest = summary.tokens / summary.duration_s
        rate = newest if rate is None else rate + RATE_SMOOTHING * (newest - rate)
    changes: dict[str, float | None] = {
        quantity: getattr(summary, quantity)
        for quantity in ("validation_loss", "grad_norm", "learning_rate")
        if summary.HasField(quantity)
    }
    if loss is not None:
        changes |= {"loss": loss, "loss_step": summary.step, "loss_zscore": finding.zscore}
    return dataclasses.replace(telemetry, tokens_per_s=rate, step_s=summary.duration_s, **changes)  # type: ignore[arg-type]


def _judge_numbers(turn: Turn, summary: store.StepSummary, finding: LossFinding) -> None:
    totals = turn.state.totals
    for bad in summary.nonfinite:
        totals = totals.count("nonfinite", bad.quantity)
    for kind in ("blip", "spike", "missing"):
        if getattr(finding, kind):
            totals = totals.count("anomalies", kind)
    turn.update(totals=totals)
    if summary.nonfinite and turn.once("non-finite"):
        first = summary.nonfinite[0]
        message = f"{first.quantity} is not finite since step {summary.step}, first seen by rank {first.rank}"
        _note_numbers(turn, store.VERDICT_KIND_NON_FINITE, message, summary.step, first.rank)
    if finding.missing and turn.once("missing"):
        message = f"no loss has been reported since step {turn.state.telemetry.loss_step}"
        _note_numbers(turn, store.VERDICT_KIND_NON_FINITE, message, summary.step, None)
    if finding.spike:
        message = (
            f"loss spike at step {summary.step}: {turn.state.telemetry.loss:.4g}, {finding.zscore:.0f} robust standard"
            " deviations above its median, in 3 of 5 steps"
        )
        _note_numbers(turn, store.VERDICT_KIND_LOSS_SPIKE, message, summary.step, None)


def _note_numbers(turn: Turn, kind: "store.VerdictKind", message: str, step: int, rank: int | None) -> None:
    culprits = [] if rank is None else [rank]
    verdict = store.Verdict(kind=kind, culprits=culprits, message=message, step=step, confidence_ratio=1.0)
    incident = incidents.note_incident(turn, verdict)
    order = store.GatherEvidence(incident=incident.id)
    turn.send(turn.record.nodes, lambda _: store.NodeCommand(gather_evidence=order))


def _progress(turn: Turn) -> None:
    """The run has completed a step when every rank is past it."""
    ranks = turn.ranks
    if len(ranks) == turn.world_size:
        reached = min((rank.exit.step if rank.HasField("exit") else rank.progress.step) for rank in ranks.values()) - 1
        if reached > turn.record.newest_step:
            turn.record_update(newest_step=reached)


def _first_exit(turn: Turn) -> None:
    exits = [rank for rank in turn.ranks.values() if rank.HasField("exit") and rank.exit.code != 0]
    if exits and not turn.state.first_exit_unix_s:
        turn.update(first_exit_unix_s=turn.now)


def phase_name(phase: "Phase") -> str:
    """Return a phase as people spell it: ``forward_backward``."""
    return Phase.Name(phase).removeprefix("PHASE_").lower()
