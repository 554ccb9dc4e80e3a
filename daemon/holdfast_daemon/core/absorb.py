"""Takes an observation in: nodes, events, telemetry. Decides nothing about ranks."""

import dataclasses

from holdfast_daemon.core import incidents, injection
from holdfast_daemon.core.death import is_clean
from holdfast_daemon.core.kinds import HANGS
from holdfast_daemon.core.model import Observation
from holdfast_daemon.core.recovery import checkpoint_commands, checkpoint_failures, checkpoint_reads, observed
from holdfast_daemon.core.step_numbers import count_step
from holdfast_daemon.core.step_summary import merge
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store

PENDING_STEPS = 512
"""A step is counted with what has come of it once a node is so many steps ahead."""


def absorb(turn: Turn, observation: Observation) -> None:
    """Fold an observation into the state."""
    _nodes(turn, observation)
    for event in observation.events:
        _event(turn, event)
    _progress(turn)
    _first_exit(turn)


def _nodes(turn: Turn, observation: Observation) -> None:
    before = turn.ranks
    nodes, state, members = dict(observation.nodes), turn.state, turn.record.nodes
    turn.update(
        nodes=nodes,
        heard_of={**state.heard_of, **{name: nodes[name] for name in members if name in nodes}},
        missed_unix_s={name: state.missed_unix_s.get(name, turn.now) for name in members if name not in nodes},
    )
    observed.follow(turn, before)


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
            checkpoint_failures.committed(turn, event.checkpoint_committed.step)
            checkpoint_commands.restart_timer(turn)
            checkpoint_commands.release(turn, event.checkpoint_committed.step)
        case "checkpoint_failed":
            checkpoint_failures.failed(turn, event)
            checkpoint_commands.release(turn, event.checkpoint_failed.step)
        case "checkpoint_unreadable":
            _unreadable(turn, event.checkpoint_unreadable)
        case "snapshot_memory_refused":
            refused = event.snapshot_memory_refused
            message = (
                f"node {event.node}: snapshots need {refused.needed_bytes / 2**20:.0f} MiB and {refused.directory} has"
                f" {refused.free_bytes / 2**20:.0f} MiB free: checkpoints go straight to disk instead; make it larger,"
                " or name another with --shm-directory"
            )
            if turn.once(f"memory {event.node}"):
                checkpoint_failures.note(turn, message, turn.record.newest_step)
        case "evidence_captured":
            _stacks(turn, event.evidence_captured)
            _evidence(turn, event.node, event.evidence_captured)
        case "fault_injected" | "fault_refused":
            injection.absorb(turn, event)
        case "command_refused":
            totals = turn.state.totals
            turn.update(totals=dataclasses.replace(totals, refused_commands=totals.refused_commands + 1))


def _unreadable(turn: Turn, unreadable: store.CheckpointUnreadable) -> None:
    if unreadable.step not in turn.record.unreadable_checkpoints:
        record = store.CoordinatorState()
        record.CopyFrom(turn.record)
        record.unreadable_checkpoints.append(unreadable.step)
        turn.update(record=record)
    checkpoint_failures.note(turn, unreadable.reason, unreadable.step)


def _stacks(turn: Turn, captured: store.EvidenceCaptured) -> None:
    """Let stacks say what ranks do that hang; those of another suspicion than the present are old."""
    current = turn.state.suspicion
    if not captured.suspicion or (current is not None and current.id == captured.suspicion):
        turn.update(stacks={**turn.state.stacks, **{stack.rank: stack for stack in captured.stacks}})


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
        # A verdict that is about no call has no name for one: nothing in its message is to be replaced.
        if verdict.op and (call.group, call.seq) == (verdict.group, verdict.seq) and call.op != verdict.op:
            verdict.message = verdict.message.replace(verdict.op, call.op)
            verdict.op = call.op
    for stack in captured.stacks:
        if list(verdict.culprits[:1]) == [stack.rank] and verdict.kind in HANGS:
            _tell_stack(verdict, stack)
    incidents.save(turn, incident)
    if captured.incident == turn.record.open_incident:
        turn.update(evidence_from=turn.state.evidence_from | {node})


def _tell_stack(verdict: store.Verdict, stack: store.StackSummary) -> None:
    verdict.activity = verdict.activity or stack.activity
    if stack.frame and stack.frame not in verdict.message:
        verdict.message += f" (at {stack.frame})"


def _merge_summary(turn: Turn, node: str, summary: store.StepSummary) -> None:
    """Merge the nodes' summaries of one step; count it when all nodes have sent theirs."""
    state = turn.state
    if summary.generation != turn.record.generation or summary.step <= state.counted_steps.get(node, -1):
        return  # of a world that is gone, or sent twice
    turn.update(counted_steps={**state.counted_steps, node: summary.step})
    known = state.pending_steps.get(summary.step)
    merged = summary if known is None else merge(known, summary)
    pending = {**state.pending_steps, summary.step: merged}
    sent = [turn.state.counted_steps.get(name, -1) for name in turn.record.nodes]
    # A node whose summaries do not come, or are refused, must not keep those of the others waiting forever.
    complete = max(min(sent, default=-1), summary.step - PENDING_STEPS)
    turn.update(pending_steps={step: value for step, value in pending.items() if step > complete})
    for step in sorted(step for step in pending if step <= complete):
        count_step(turn, pending[step])


def _progress(turn: Turn) -> None:
    """The run has completed a step when every rank is past it."""
    ranks = turn.ranks
    if len(ranks) == turn.world_size:
        reached = min((rank.exit.step if rank.HasField("exit") else rank.progress.step) for rank in ranks.values()) - 1
        if reached > turn.record.newest_step:
            turn.record_update(newest_step=reached)
    if any(rank.steps_done for rank in ranks.values()):
        checkpoint_reads.see_training(turn)


def _first_exit(turn: Turn) -> None:
    exits = [rank for rank in turn.ranks.values() if rank.HasField("exit") and not is_clean(rank.exit)]
    if exits and not turn.state.first_exit_unix_s:
        turn.update(first_exit_unix_s=turn.now)
