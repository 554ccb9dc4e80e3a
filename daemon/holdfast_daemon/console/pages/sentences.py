"""How a run is, in words: its health, and a line that says what is true and since when."""

import time
from collections.abc import Mapping

from holdfast_daemon.console.ranks.rank_health import WAITING
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
    store.RUN_PHASE_STARTING: "starts, and no step of this generation is complete yet",
    store.RUN_PHASE_GATHERING: "gathers evidence before a restart",
    store.RUN_PHASE_STOPPING: "stops its ranks for a restart",
}
"""Phase of a run -> the words for it; a cause follows."""
_TRAINS = "trains"
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
    is_running = state.record.phase == store.RUN_PHASE_RUNNING
    if open_incident(state) is not None or (is_running and _is_dead(table)):
        return "bad"
    if is_running and not table.rows:
        return "unknown"
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
    else:
        text, stalled = _doing(table), table.counts["stalled"]
        if 0 < table.size <= stalled:
            still = "no rank has made progress lately"
            text = still if text == _TRAINS else f"{text}, but {still}"
        elif stalled:
            text += f", and {number_of(stalled, 'rank')} made no progress lately"
    return text


def is_any_alive(table: RankTable) -> bool:
    """Return whether a rank that is heard of has not exited."""
    return any(row.life != store.LIFE_EXITED for row in table.rows.values())


def _is_dead(table: RankTable) -> bool:
    """Return whether all ranks have exited, and not all of them well."""
    return bool(table.rows) and not is_any_alive(table) and not all(row.ended_well for row in table.rows.values())


def _doing(table: RankTable) -> str:
    """Return what a run does: it trains, unless its script has marked a pause of all ranks, or one others wait for."""
    if not table.rows:
        return "no rank is heard of"
    if not is_any_alive(table):
        return "no rank is alive" if _is_dead(table) else "all ranks have ended"
    running = [row for row in table.rows.values() if row.life == store.LIFE_RUNNING]
    if len(phases := {row.phase for row in running}) == 1:
        return _NOT_TRAINING.get(phases.pop(), _TRAINS)
    waiting = sum(table.health[row.rank] == WAITING for row in running)
    doing = {_NOT_TRAINING[table.rows[number].phase] for number in table.pausing}
    if not waiting or len(doing) != 1:
        return _TRAINS
    others = "1 rank waits" if waiting == 1 else f"{waiting} ranks wait"
    return f"{doing.pop()} on {ranks_named(sorted(table.pausing))} while {others}"


def attention(state: CoreState, now: float) -> dict[str, object] | None:
    """Return what happened, why Holdfast thinks so, and what is next; None if nothing needs attention."""
    incident = urgent_incident(state, now)
    if incident is None:
        return None
    return {
        "incident": incident.id,
        "what": headline(incident),
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


def headline(incident: store.Incident) -> str:
    """Return what has happened. Of what was only noted it says when: it may be over by now."""
    what = _what(incident)
    return (
        f"Noted at {_clock(incident.detected_unix_s)}: {what}" if incident.state == store.INCIDENT_STATE_NOTED else what
    )


def _what(incident: store.Incident) -> str:
    return incident.verdict.message or verdict_word(incident)


def _newest_report(state: CoreState) -> float:
    known = {**state.heard_of, **state.nodes}
    return max((node.reported_unix_s for node in known.values()), default=0.0)


def _clock(unix_s: float) -> str:
    """Return a time of the daemon's clock, with its zone: the reader may be in another one."""
    return time.strftime("%H:%M:%S %Z", time.localtime(unix_s)) if unix_s else "the daemon's start"
