"""How a run is, in words: its health, and a line that says what is true and since when."""

from collections.abc import Mapping

from holdfast_base.text import clock
from holdfast_core.model import CoreState
from holdfast_core.naming import STOPPED_BY_OPERATOR, ranks_named
from holdfast_core.nodes.node_views import nodes_advice, nodes_note
from holdfast_core.reading.attention import (
    can_be_acknowledged,
    is_bad,
    open_incident,
    urgent_incident,
)
from holdfast_core.reading.rank_health import LEFT, WAITING
from holdfast_core.texts.advice import next_line
from holdfast_core.texts.hangs import awaited_calls
from holdfast_core.texts.incident_lines import enum_phrase, number_of, outcome_line, what_line
from holdfast_daemon.console.ranks.rank_table import RankTable
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_CHECKPOINT, PHASE_EVAL
from holdfast_proto.vocabulary import ENDED, ends_badly

_WAITS_SHOWN = 3
_CALLS_SHOWN = 4
_LEAST_SILENCE_S = 0.1
"""Time without progress before a verdict that is worth a line: an exit is judged in less."""
_RESTARTS = {
    store.RUN_PHASE_STARTING: "starts, and no step of this generation is complete yet",
    store.RUN_PHASE_GATHERING: "gathers evidence before a restart",
    store.RUN_PHASE_STOPPING: "stops its ranks for a restart",
}
"""Phase of a run -> the words for it; a cause follows."""
_TRAINS = "trains"
_NOT_TRAINING: Mapping[int, str] = {PHASE_EVAL: "evaluates", PHASE_CHECKPOINT: "saves a checkpoint of its own"}


def health(state: CoreState | None, table: RankTable | None, now: float, *, store_up: bool) -> str:
    """Return one word: ok, attention, bad, ended or unknown."""
    if state is None or table is None:
        return "unknown"
    if state.record.phase in ENDED:
        failed = state.record.phase == store.RUN_PHASE_FAILED and state.record.outcome != STOPPED_BY_OPERATOR
        return "bad" if failed or ends_badly(state.spec, state.record.loss_counts) else "ended"
    if not store_up:
        return "unknown"
    is_running = state.record.phase == store.RUN_PHASE_RUNNING
    if is_bad(state) or (is_running and _is_dead(table)):
        return "bad"
    if is_running and not table.rows:
        return "unknown"
    is_not_finite = state.record.loss_counts.HasField("nonfinite_since")
    is_odd = is_not_finite or table.counts["stalled"] > 0 or urgent_incident(state, now) is not None
    return "attention" if is_odd or nodes_note(state) else "ok"


def state_text(state: CoreState | None, table: RankTable | None, *, store_up: bool) -> str:
    """Return what is known of a run, in one line. What the daemon cannot see, it says it does not know."""
    if state is None or table is None:
        return "the daemon reads its state" if store_up else "nothing is known yet: the store is unreachable"
    record, incident = state.record, open_incident(state)
    if record.phase in ENDED:
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
        text = f"{words}: {what_line(incident)}" if incident is not None else words
    elif incident is not None:
        text = f"since {_clock(incident.last_progress_unix_s)}: {what_line(incident)}"
    else:
        text, stalled = _doing(table), table.counts["stalled"]
        if 0 < table.size <= stalled:
            still = "no rank has made progress lately"
            text = still if text == _TRAINS else f"{text}, but {still}"
        elif stalled:
            text += f", and {number_of(stalled, 'rank')} made no progress lately"
        if record.loss_counts.HasField("nonfinite_since"):
            text += f", but its loss is not finite since step {record.loss_counts.nonfinite_since}"
    return text


def is_any_alive(table: RankTable) -> bool:
    """Return whether a rank that is heard of has not exited."""
    return any(row.life != store.LIFE_EXITED for row in table.rows.values())


def _is_dead(table: RankTable) -> bool:
    """Return whether all ranks have exited, and not all of them well."""
    return bool(table.rows) and not is_any_alive(table) and not all(row.health == LEFT for row in table.rows.values())


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
        what = nodes_note(state)
        return {"what": what, "why": [], "next": nodes_advice(state)} if what else None
    return {
        "incident": incident.id,
        "what": headline(incident),
        "why": reasons(incident),
        "next": next_line(incident, state.spec),
        "can_be_acknowledged": can_be_acknowledged(state, incident),
    }


def reasons(incident: store.Incident) -> list[str]:
    """Return what a verdict rests on, one line each."""
    verdict = incident.verdict
    lines = list(verdict.device_call.why)
    lines += verdict.calls[:_CALLS_SHOWN]
    calls = awaited_calls(verdict.waits, verdict.culprits)
    of_culprits = [call for call in calls if call.awaited in verdict.culprits]
    lines += [call.line for call in (of_culprits or calls)[:_WAITS_SHOWN]]
    silent_s = incident.detected_unix_s - incident.last_progress_unix_s
    if incident.last_progress_unix_s and silent_s >= _LEAST_SILENCE_S:
        lines.append(f"no progress for {silent_s:.1f} s before the verdict")
    if verdict.confidence_ratio > 0.0:
        lines.append(f"confidence {verdict.confidence_ratio:.0%}")
    if outcome := outcome_line(incident):
        lines.append(outcome)
    return lines


def headline(incident: store.Incident) -> str:
    """Return what has happened. Of what was only noted it says when: it may be over by now."""
    what = what_line(incident)
    return (
        f"Noted at {_clock(incident.detected_unix_s)}: {what}" if incident.state == store.INCIDENT_STATE_NOTED else what
    )


def _newest_report(state: CoreState) -> float:
    known = {**state.heard_of, **state.nodes}
    return max((node.reported_unix_s for node in known.values()), default=0.0)


def _clock(unix_s: float) -> str:
    """Return a time of the daemon's clock, with its zone: the reader may be in another one."""
    return clock(unix_s) if unix_s else "the daemon's start"
