"""A run as its page and the list of runs show it."""

import math
from collections.abc import Mapping
from typing import Any

from holdfast_core.accounting.ledger import time_use
from holdfast_core.checkpointing.replicas import complete_step
from holdfast_core.model import CoreState, Logged, Telemetry, committed_steps, present_step
from holdfast_core.naming import run_phase_text, time_left_s
from holdfast_core.nodes.node_views import nodes_note
from holdfast_core.reading.attention import (
    is_training,
    open_incident,
    tokens_per_s,
    urgent_incident,
)
from holdfast_core.texts.incident_lines import what_line
from holdfast_daemon.console.pages.sentences import (
    attention,
    headline,
    health,
    state_text,
)
from holdfast_daemon.console.ranks.rank_table import RankReader, RankTable
from holdfast_daemon.console.watched import WatchedRun
from holdfast_proto.message_json import enum_name
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_FORWARD_BACKWARD
from holdfast_proto.vocabulary import ENDED

INCIDENTS_SHOWN = 50
"""Newest incidents in a frame; the page of the incidents has all."""
_MAY_BE_NONFINITE = ("loss", "validation_loss", "grad_norm", "learning_rate", "loss_scale")

Frame = dict[str, Any]


def short_frame(run: WatchedRun, reader: RankReader, now: float) -> Frame:
    """Return the row of the list of runs."""
    state = run.state
    if state is None:
        return _unknown(run)
    table, record = reader.table(state), state.record
    incident = urgent_incident(state, now)
    return {
        "run": run.run_name,
        "state": run_phase_text(record.phase, record.outcome, stands_still=open_incident(state) is not None),
        "state_text": state_text(state, table, store_up=run.store_up),
        "health": health(state, table, now, store_up=run.store_up),
        "step": present_step(state),
        "steps_until": table.steps_until or None,
        "loss": _short(state.telemetry.loss),
        "nonfinite": _nonfinite(state.telemetry),
        "tokens_per_s": _short(tokens_per_s(state), 3),
        "goodput_ratio": _goodput(_time_use_s(state, now)),
        "restarts": record.restarts_total,
        "incidents": max(state.record.incident_count, len(state.incidents)),
        "created_unix_s": state.spec.created_unix_s,
        "ranks": table.size,
        "verdict": nodes_note(state) if incident is None else headline(incident),
    }


def run_frame(run: WatchedRun, reader: RankReader, now: float) -> Frame:
    """Return all that the page of a run shows."""
    short = short_frame(run, reader, now)
    state = run.state
    if state is None:
        return short | _details_unknown(run, now)
    table, record, spec = reader.table(state), state.record, state.spec
    telemetry = state.telemetry
    committed = committed_steps(state)
    used = _time_use_s(state, now)
    return short | {
        "mode": enum_name(store.Mode, spec.mode),
        "preset": enum_name(store.Preset, spec.preset),
        "generation": record.generation,
        "store_up": run.store_up,
        "leader": run.leads,
        "now_unix_s": round(now, 1),
        "wall_s": round(sum(used.values()), 1),
        "time_use_s": used,
        "progress": progress(state, table),
        "telemetry": {
            "loss": telemetry.loss,
            "validation_loss": telemetry.validation_loss,
            "grad_norm": telemetry.grad_norm,
            "learning_rate": telemetry.learning_rate,
            "tokens_per_s": _short(tokens_per_s(state)),
            "step_s": _short(telemetry.step_s),
            "mfu": _short(telemetry.mfu),
            "loss_scale": telemetry.loss_scale,
            "loss_zscore": _short(telemetry.loss_zscore, 3) if telemetry.loss_step >= 0 else None,
        },
        "logged": [_logged_row(name, number) for name, number in sorted(telemetry.logged.items())],
        "rank_counts": table.counts,
        "newest_step": present_step(state),
        "newest_checkpoint": max(committed, default=-1),
        "newest_snapshot": table.newest_snapshot,
        "newest_replica": complete_step(state),
        "outcome": record.outcome,
        "deadline_s": None if record.phase in ENDED else _deadline_s(state),
        "attention": attention(state, now),
        "actions": refusals(run),
        "incidents_list": [incident_row(state.incidents[name]) for name in newest_first(state)[:INCIDENTS_SHOWN]],
        "checkpoints": {
            "newest": max(committed, default=-1),
            "committed": committed,
        },
        "notes": _notes(run, state, table, now),
    }


def stale_text(run: WatchedRun, table: RankTable) -> str:
    """Return the run's line of state if what pages show of its ranks may be old; "" if it is not."""
    state = run.state
    if state is None or state.record.phase in ENDED or (run.store_up and table.rows):
        return ""
    return state_text(state, table, store_up=run.store_up)


def incident_row(incident: store.Incident) -> Frame:
    """Return an incident in the list of incidents."""
    return {
        "id": incident.id,
        "kind": enum_name(store.VerdictKind, incident.verdict.kind),
        "what": what_line(incident),
        "step": incident.verdict.step,
        "detected_unix_s": incident.detected_unix_s,
        "recovered_unix_s": incident.recovered_unix_s or None,
        "state": enum_name(store.IncidentState, incident.state),
        "culprits": list(incident.verdict.culprits),
        "acknowledged": incident.acknowledged_unix_s > 0.0,
    }


def newest_first(state: CoreState) -> list[str]:
    """Return the ids of a run's incidents, the newest first."""
    return sorted(state.incidents, key=lambda name: (state.incidents[name].detected_unix_s, name), reverse=True)


def refusals(run: WatchedRun) -> dict[str, str]:
    """Return for each action why it cannot be done now; "" if it can, as far as the daemon knows."""
    state = run.state
    names = ("checkpoint", "stop", "release", "inject", "stacks", "acknowledge")
    if state is None or not run.store_up:
        return dict.fromkeys(names, "the store is unreachable: try again")
    if not run.leads:
        return {**dict.fromkeys(names, "another daemon leads the run: use its console"), "release": ""}
    if state.record.phase in ENDED:
        return {**dict.fromkeys(names, "the run has ended"), "release": ""}
    running = "" if state.record.phase == store.RUN_PHASE_RUNNING else "the run is not running: try again when it is"
    observed = "" if state.saves else "the run is only observed: its own program takes its checkpoints"
    forbidden = "" if state.spec.injection_allowed else "start the run with --allow-faults"
    return {
        **dict.fromkeys(names, ""),
        "checkpoint": observed or running,
        "inject": forbidden or running,
    }


def progress(state: CoreState, table: RankTable) -> Frame:
    """Return the share of the steps that are done, and the time left at the pace of the newest steps."""
    until = table.steps_until
    if not until:
        return {"ratio": None, "left_s": None}
    newest = present_step(state)
    left_s = time_left_s(until, newest, state.deadlines.median_step_s, is_training=is_training(state))
    return {"ratio": round(min(1.0, (newest + 1) / until), 4), "left_s": None if left_s is None else round(left_s)}


def _deadline_s(state: CoreState) -> float | None:
    return _short(state.deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 1000), 3)


def _time_use_s(state: CoreState, now: float) -> dict[str, float]:
    """Return seconds by use, as pages have them: more digits would change a page with each tick."""
    return {use: round(seconds, 2) for use, seconds in time_use(state, now).items()}


def _goodput(used_s: Mapping[str, float]) -> float | None:
    """Return the productive share of the seconds shown; more digits would change the list with each tick."""
    wall_s = sum(used_s.values())
    return round(used_s.get("productive", 0.0) / wall_s, 4) if wall_s else None


def _nonfinite(telemetry: Telemetry) -> list[str]:
    """Return the quantities whose newest reported value is NaN or infinite: in JSON it is null, as one not reported."""
    values = {name: getattr(telemetry, name) for name in _MAY_BE_NONFINITE}
    return [name for name, value in values.items() if value is not None and not math.isfinite(value)]


def _logged_row(name: str, number: Logged) -> Frame:
    """Return a number that the script logs. ``value`` is None if it is not finite."""
    return {"name": name, "value": number.value if math.isfinite(number.value) else None, "step": number.step}


def _notes(run: WatchedRun, state: CoreState, table: RankTable, now: float) -> list[str]:
    """Return lines about what the page cannot show, or should be read with care."""
    notes = []
    missing = nodes_note(state)
    if missing and urgent_incident(state, now) is not None:  # else it is what the page says first
        notes.append(missing)
    if not run.leads and run.store_up:
        notes.append("another daemon leads this run: what it has learned and measured is on its own console")
    if state.record.phase not in ENDED and len(table.rows) < table.size and state.record.generation:
        notes.append(f"{table.size - len(table.rows)} of {table.size} ranks are not heard of")
    if sum(run.refusals.counts.values()):
        notes.append("the daemon has refused messages about this run: its log names the first of each kind")
    return notes


def _unknown(run: WatchedRun) -> Frame:
    return {
        "run": run.run_name,
        "nonfinite": [],
        "state": "unknown",
        "state_text": state_text(None, None, store_up=run.store_up),
        "health": "unknown",
        "step": -1,
        **dict.fromkeys(("steps_until", "loss", "tokens_per_s", "goodput_ratio", "created_unix_s")),
        **dict.fromkeys(("restarts", "incidents", "ranks"), 0),
        "verdict": "",
    }


def _details_unknown(run: WatchedRun, now: float) -> Frame:
    telemetry = "loss validation_loss grad_norm learning_rate tokens_per_s step_s mfu loss_scale loss_zscore"
    return {
        "mode": "",
        "preset": "",
        "generation": 0,
        "store_up": run.store_up,
        "leader": run.leads,
        "now_unix_s": round(now, 1),
        "wall_s": None,
        "time_use_s": {},
        "progress": {"ratio": None, "left_s": None},
        "telemetry": dict.fromkeys(telemetry.split()),
        "logged": [],
        "rank_counts": dict.fromkeys(("starting", "running", "exited", "stalled"), 0),
        **dict.fromkeys(("newest_step", "newest_checkpoint", "newest_snapshot"), -1),
        "newest_replica": None,
        "outcome": "",
        "deadline_s": None,
        "attention": None,
        "actions": refusals(run),
        "incidents_list": [],
        "checkpoints": {"newest": -1, "committed": []},
        "notes": [],
    }


def _short(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")
