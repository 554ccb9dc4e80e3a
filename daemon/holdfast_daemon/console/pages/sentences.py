"""How a run is, in words: its health, and a line that says what is true and since when."""

import time
from collections.abc import Mapping

from holdfast_daemon.console.ranks.rank_table import RankTable, open_incident
from holdfast_daemon.core.model import CoreState
from holdfast_daemon.core.naming import STOPPED_BY_OPERATOR, ranks_named
from holdfast_daemon.core.texts.advice import next_line
from holdfast_daemon.core.texts.incident_lines import enum_phrase, number_of, outcome_line, verdict_word
from holdfast_proto.loss_tiers import ends_badly
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_CHECKPOINT, PHASE_EVAL

RECENT_S = 600.0
"""Time for which an incident that stopped nothing still asks for attention."""
_WAITS_SHOWN = 3
_CALLS_SHOWN = 4
_RESTARTS = {
    store.RUN_PHASE_STARTING: "starts, and no step is complete yet",
    store.RUN_PHASE_GATHERING: "gathers evidence before a restart",
    store.RUN_PHASE_STOPPING: "stops its ranks for a restart",
}
"""Phase of a run -> the words for it; a cause follows."""
_NOT_TRAINING: Mapping[int, str] = {PHASE_EVAL: "evaluates", PHASE_CHECKPOINT: "saves a checkpoint of its own"}
_ENDED = (store.RUN_PHASE_FINISHED, store.RUN_PHASE_FAILED)


def state_word(state: CoreState) -> str:
    """Return the phase of a run: ``running``, ``finished``; ``stopped`` of one that an operator has stopped."""
    record = state.record
    if record.phase == store.RUN_PHASE_FAILED and record.outcome == STOPPED_BY_OPERATOR:
        return "stopped"
    return enum_phrase(store.RunPhase, record.phase)


def urgent_incident(state: CoreState, now: float) -> store.Incident | None:
    """Return the incident that a person should see first; None: none needs attention."""
    present = open_incident(state)
    if present is not None:
        return present
    if state.record.phase in _ENDED:
        newest = state.incidents[max(state.incidents)] if state.incidents else store.Incident()
        has_failed = state.record.phase == store.RUN_PHASE_FAILED and newest.state == store.INCIDENT_STATE_FAILED
        return newest if has_failed else None
    states = (store.INCIDENT_STATE_NOTED, store.INCIDENT_STATE_FAILED)
    recent = [
        incident
        for incident in state.incidents.values()
        if incident.state in states and now - incident.detected_unix_s < RECENT_S
    ]
    return max(recent, key=lambda incident: incident.detected_unix_s, default=None)


def health(state: CoreState | None, table: RankTable | None, now: float, *, store_up: bool) -> str:
    """Return one word: ok, attention, bad, ended or unknown."""
    if state is None or table is None:
        return "unknown"
    if state.record.phase in _ENDED:
        failed = state.record.phase == store.RUN_PHASE_FAILED and state.record.outcome != STOPPED_BY_OPERATOR
        return "bad" if failed or ends_badly(state.spec, state.record.loss_counts) else "ended"
    if not store_up:
        return "unknown"
    if open_incident(state) is not None:
        return "bad"
    is_odd = table.counts["stalled"] > 0 or urgent_incident(state, now) is not None
    return "attention" if is_odd else "ok"


def state_text(state: CoreState | None, table: RankTable | None, *, store_up: bool) -> str:
    """Return what is known of a run, in one line. What the daemon cannot see, it says it does not know."""
    if state is None or table is None:
        return "the daemon reads its state" if store_up else "nothing is known yet: the store is unreachable"
    record, incident = state.record, open_incident(state)
    if record.phase in _ENDED:
        text = record.outcome or enum_phrase(store.RunPhase, record.phase)
        if record.phase == store.RUN_PHASE_FINISHED and ends_badly(state.spec, record.loss_counts):
            text += f", but its loss was not finite from step {record.loss_counts.nonfinite_since} to the end"
    elif not store_up:
        since = _clock(_newest_report(state))
        text = f"unknown since {since}: the daemon cannot reach the store; ranks may train on"
    elif record.phase == store.RUN_PHASE_WAITING:
        ready = sum(node.ready for node in state.nodes.values())
        text = f"waits for nodes: {ready} of {state.spec.nodes} ready"
    elif record.phase == store.RUN_PHASE_LEAVING:
        text = "stops as planned, after a last checkpoint"
    elif record.phase in _RESTARTS:
        words = _RESTARTS[record.phase]
        text = f"{words}: {_what(incident)}" if incident is not None else words
    elif incident is not None:
        text = f"stands still since {_clock(incident.last_progress_unix_s)}: {_what(incident)}"
    elif doing := _all_do(table):
        text = doing
    elif stalled := table.counts["stalled"]:
        text = f"trains, and {number_of(stalled, 'rank')} made no progress lately"
        if stalled >= table.size:
            text = "no rank has made progress lately"
    else:
        text = "trains"
    return text


def _all_do(table: RankTable) -> str:
    """Return what all ranks do if it is no training, as their script marks it; "" if they train, or differ."""
    phases = {row.phase for row in table.rows.values() if row.life == store.LIFE_RUNNING}
    return _NOT_TRAINING.get(next(iter(phases)), "") if len(phases) == 1 else ""


def attention(state: CoreState, now: float) -> dict[str, object] | None:
    """Return what happened, why Holdfast thinks so, and what is next; None if nothing needs attention."""
    incident = urgent_incident(state, now)
    if incident is None:
        return None
    return {
        "incident": incident.id,
        "what": _what(incident),
        "why": reasons(incident),
        "next": next_line(incident, state.spec),
    }


def reasons(incident: store.Incident) -> list[str]:
    """Return what a verdict rests on, one line each."""
    verdict = incident.verdict
    lines = list(verdict.device_call.why)
    lines += verdict.calls[:_CALLS_SHOWN]
    if verdict.waits:
        waiting: dict[int, set[int]] = {}
        for edge in verdict.waits:
            waiting.setdefault(edge.awaited, set()).add(edge.waiter)
        first = [rank for rank in verdict.culprits if rank in waiting] or sorted(waiting)
        for rank in first[:_WAITS_SHOWN]:
            edge = next(one for one in verdict.waits if one.awaited == rank)
            lines.append(
                f"{ranks_named(sorted(waiting[rank]))} {'waits' if len(waiting[rank]) == 1 else 'wait'} for rank {rank}"
                f" in {edge.op or 'call'} {edge.seq} of {edge.group}"
            )
    if incident.last_progress_unix_s and incident.detected_unix_s > incident.last_progress_unix_s:
        silent_s = incident.detected_unix_s - incident.last_progress_unix_s
        lines.append(f"no progress for {silent_s:.1f} s before the verdict")
    if verdict.confidence_ratio > 0.0:
        lines.append(f"confidence {verdict.confidence_ratio:.0%}")
    if outcome := outcome_line(incident):
        lines.append(outcome)
    return lines


def _what(incident: store.Incident | None) -> str:
    return (incident.verdict.message or verdict_word(incident)) if incident is not None else ""


def _newest_report(state: CoreState) -> float:
    known = {**state.heard_of, **state.nodes}
    return max((node.reported_unix_s for node in known.values()), default=0.0)


def _clock(unix_s: float) -> str:
    """Return a time of the daemon's clock, with its zone: the reader may be in another one."""
    return time.strftime("%H:%M:%S %Z", time.localtime(unix_s)) if unix_s else "the daemon's start"
