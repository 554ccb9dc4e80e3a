"""Checks what the store keeps of a run itself: its spec, its leader's record and its incidents."""

from holdfast_core.recovery.ending import ENDED
from holdfast_daemon.validation.detail_rules import check_detail
from holdfast_daemon.validation.rules import (
    ACTIVITIES,
    HANG_ACTIONS,
    INCIDENT_STATES,
    LAUNCHER_REACTIONS,
    LOSS_ACTIONS,
    LOSS_TIERS,
    MODES,
    MOST_ITEMS,
    MOST_NODES,
    PHASES,
    PRESETS,
    RUN_PHASES,
    SOURCES,
    VERDICT_KINDS,
    RefusedError,
    check_count,
    check_files,
    check_id,
    check_known,
    check_length,
    check_node_name,
    check_phase_times,
    check_rank,
    check_seconds,
    check_step,
    check_steps,
    check_stream_id,
    check_text,
    check_unix_s,
)
from holdfast_proto.limits import MOST_RANKS, NAME_CHARACTERS
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import MOST_BUDGET, TIME_USES


def check_spec(spec: store.RunSpec, run: str) -> None:
    """Check what a run is."""
    if spec.run != run:
        raise RefusedError(f"it is of run {spec.run[:80]!r}")
    if not 1 <= spec.nodes <= MOST_NODES:
        raise RefusedError(f"nodes is {spec.nodes}")
    if spec.nodes * spec.ranks_per_node > MOST_RANKS:
        raise RefusedError(f"{spec.nodes} nodes of {spec.ranks_per_node} ranks are more than {MOST_RANKS} ranks")
    if not 1 <= len(spec.instance) <= NAME_CHARACTERS:
        raise RefusedError(f"instance has {len(spec.instance)} characters")
    check_known(spec.mode, MODES, "mode")
    check_known(spec.preset, PRESETS, "preset")
    check_length(spec.command, "command")
    for word in spec.command:
        check_text(word, "command")
    check_unix_s(spec.created_unix_s, "created_unix_s")
    check_seconds(spec.checkpoint_every_s, "checkpoint_every_s")
    if not 0.0 <= spec.checkpoint_upload_bytes_per_s <= 1e15:
        raise RefusedError(f"checkpoint_upload_bytes_per_s is {spec.checkpoint_upload_bytes_per_s:g}")
    if not 0.0 <= spec.restart_patience <= 1e6:
        raise RefusedError(f"restart_patience is {spec.restart_patience:g}")
    check_step(spec.continue_from, "continue_from")
    check_known(spec.on_hang, HANG_ACTIONS, "on_hang")
    _check_loss_policy(spec.loss_policy)
    check_text(spec.checkpoint_directory, "checkpoint_directory")
    check_text(spec.checkpoints_secondary, "checkpoints_secondary")
    check_length(spec.versions, "versions")
    for package, version in spec.versions.items():
        check_text(package, "versions", NAME_CHARACTERS)
        check_text(version, "versions", NAME_CHARACTERS)


def _check_loss_policy(policy: store.LossPolicy) -> None:
    for field, rule in policy.ListFields():
        check_known(rule.action, LOSS_ACTIONS, f"loss_policy.{field.name}.action")
        check_count(rule.budget, f"loss_policy.{field.name}.budget", MOST_BUDGET)


def check_record(record: store.CoordinatorState, run: str) -> None:
    """Check what the last leader knew."""
    if record.run != run:
        raise RefusedError(f"it is of run {record.run[:80]!r}")
    check_known(record.phase, RUN_PHASES, "phase")
    check_known(record.source, SOURCES, "source")
    for field in ("generation", "incident_count", "fence"):
        check_count(getattr(record, field), field)
    for field in ("resumed_step", "newest_step", "step_at_restart", "leave_step", "left_step"):
        check_step(getattr(record, field), field)
    for field in ("phase_since_unix_s", "leave_by_unix_s", "checkpoint_since_unix_s"):
        check_unix_s(getattr(record, field), field)
    check_steps(record.unreadable_checkpoints, "unreadable_checkpoints")
    _check_nodes(record)
    check_id(record.open_incident, "open_incident")
    check_id(record.standstill_incident, "standstill_incident")
    check_id(record.checkpoint_outage.incident, "checkpoint_outage.incident")
    check_step(record.checkpoint_outage.committed_step, "checkpoint_outage.committed_step")
    check_stream_id(record.last_event_id, "last_event_id")
    check_text(record.outcome, "outcome")
    check_length(record.known_pauses, "known_pauses")
    for pause in record.known_pauses:
        check_text(pause.kind, "known_pauses.kind", NAME_CHARACTERS)
        check_seconds(pause.longest_s, "known_pauses.longest_s")
    check_length(record.pinned, "pinned")
    for pin in record.pinned:
        check_known(pin.kind, VERDICT_KINDS, "pinned.kind")
        check_step(pin.step, "pinned.step")
    check_length(record.wanted, "wanted")
    for wanted in record.wanted:
        check_id(wanted.incident, "wanted.incident")
        check_step(wanted.before_step, "wanted.before_step")
    check_phase_times(record.longest_phase_s.keys(), record.longest_phase_s.values(), "longest_phase_s")
    _check_time_use(record.time_use)
    check_known(record.loss_counts.stopped_by, LOSS_TIERS, "loss_counts.stopped_by")
    for field in ("judged_step", "nonfinite_since", "finite_step"):
        check_step(getattr(record.loss_counts, field), f"loss_counts.{field}")
    check_step(record.proven.before_step, "proven.before_step")
    check_steps(record.proven.open, "proven.open")
    check_step(record.bad_loss.from_step, "bad_loss.from_step")
    check_text(record.bad_loss.reason, "bad_loss.reason")
    check_unix_s(record.bad_loss.since_unix_s, "bad_loss.since_unix_s")


def _check_time_use(book: store.TimeUse) -> None:
    for field in ("since_unix_s", "progress_unix_s", "judged_unix_s", "ended_unix_s"):
        check_unix_s(getattr(book, field), f"time_use.{field}")
    for use, seconds in book.settled_s.items():
        if use not in TIME_USES:
            raise RefusedError(f"time_use.settled_s has the unknown use {use[:80]!r}")
        check_seconds(seconds, "time_use.settled_s")
    for field in ("reached_step", "generation_step"):
        check_step(getattr(book, field), f"time_use.{field}")


def _check_nodes(record: store.CoordinatorState) -> None:
    check_length(record.nodes, "nodes", MOST_NODES)
    for name in record.nodes:
        check_node_name(name, "nodes")
    if len(set(record.nodes)) < len(record.nodes):
        raise RefusedError("nodes names one twice")
    if not record.nodes and record.phase not in {store.RUN_PHASE_WAITING, *ENDED}:
        raise RefusedError(f"nodes is empty in phase {store.RunPhase.Name(record.phase)}")


def check_incident(incident: store.Incident, run: str, key: str) -> None:
    """Check an incident that the store keeps under ``key``."""
    if incident.id != key or not key:
        raise RefusedError(f"it is incident {incident.id[:80]!r}")
    check_id(incident.id, "id")
    if incident.run not in ("", run):
        raise RefusedError(f"it is of run {incident.run[:80]!r}")
    check_known(incident.state, INCIDENT_STATES, "state")
    check_known(incident.source, SOURCES, "source")
    check_known(incident.loss_tier, LOSS_TIERS, "loss_tier")
    check_count(incident.generation, "generation")
    for field in ("last_progress_unix_s", "detected_unix_s", "recovered_unix_s"):
        check_unix_s(getattr(incident, field), field)
    for field in ("reached_step", "resumed_step", "lost_steps"):
        check_step(getattr(incident, field), field)
    check_length(incident.actions, "actions")
    for action in incident.actions:
        check_unix_s(action.unix_s, "actions.unix_s")
        check_text(action.what, "actions.what")
    check_files(incident.evidence, "evidence")
    check_length(incident.culprits, "culprits", MOST_RANKS)
    for place in incident.culprits:
        check_rank(place.rank, MOST_RANKS, "culprits")
        if place.node:
            check_node_name(place.node, "culprits.node")
    check_unix_s(incident.acknowledged_unix_s, "acknowledged_unix_s")
    _check_abort(incident.abort)
    _check_verdict(incident.verdict)


def _check_abort(abort: store.HangAbort) -> None:
    check_known(abort.reaction, LAUNCHER_REACTIONS, "abort.reaction")
    check_unix_s(abort.sent_unix_s, "abort.sent_unix_s")
    check_seconds(abort.after_s, "abort.after_s")
    check_count(abort.generation, "abort.generation")
    check_length(abort.ranks, "abort.ranks", MOST_RANKS)
    for ended in abort.ranks:
        check_rank(ended.rank, MOST_RANKS, "abort.ranks")
        check_node_name(ended.node, "abort.ranks.node")
        check_seconds(ended.stalled_s, "abort.ranks.stalled_s")


def _check_verdict(verdict: store.Verdict) -> None:
    check_known(verdict.kind, VERDICT_KINDS, "verdict.kind")
    check_known(verdict.phase, PHASES, "verdict.phase")
    check_known(verdict.activity, ACTIVITIES, "verdict.activity")
    check_step(verdict.step, "verdict.step")
    check_count(verdict.seq, "verdict.seq")
    if not 0.0 <= verdict.confidence_ratio <= 1.0:
        raise RefusedError(f"verdict.confidence_ratio is {verdict.confidence_ratio:g}")
    check_text(verdict.message, "verdict.message")
    check_length(verdict.culprits, "verdict.culprits", MOST_RANKS)
    for rank in verdict.culprits:
        check_rank(rank, MOST_RANKS, "verdict.culprits")
    check_length(verdict.waits, "verdict.waits", MOST_RANKS)
    for edge in verdict.waits:
        check_rank(max(edge.waiter, edge.awaited), MOST_RANKS, "verdict.waits")
        check_count(edge.seq, "verdict.waits.seq")
    check_length(verdict.calls, "verdict.calls", MOST_ITEMS)
    check_detail(verdict)
