"""Opening, completing and closing incidents."""

import dataclasses

from holdfast_daemon.core import injection
from holdfast_daemon.core.model import SaveIncident
from holdfast_daemon.core.turn import Turn
from holdfast_daemon.core.words import kind_name
from holdfast_proto.v1 import store_pb2 as store


def open_incident(turn: Turn, verdict: store.Verdict, *, last_progress_unix_s: float) -> store.Incident:
    """Begin the story of a verdict that will be acted on. An older open one ends as superseded."""
    _supersede(turn)
    incident = _new(turn, verdict, last_progress_unix_s, store.INCIDENT_STATE_OPEN)
    turn.record_update(open_incident=incident.id)
    _count_detection(turn, last_progress_unix_s)
    return incident


def open_standstill(turn: Turn, verdict: store.Verdict, *, last_progress_unix_s: float) -> store.Incident:
    """Begin the story of a standstill that is given time."""
    incident = _new(turn, verdict, last_progress_unix_s, store.INCIDENT_STATE_STANDSTILL)
    _count_detection(turn, last_progress_unix_s)
    return incident


def reopen(turn: Turn, standstill: store.Incident, verdict: store.Verdict) -> store.Incident:
    """Act on a standstill that was given time. The verdict is as of now; an older open incident ends as superseded."""
    _supersede(turn)
    incident = store.Incident()
    incident.CopyFrom(standstill)
    incident.verdict.CopyFrom(verdict)
    incident.state = store.INCIDENT_STATE_OPEN
    incident.reached_step = turn.record.newest_step
    turn.record_update(open_incident=incident.id)
    save(turn, incident)
    return incident


def resolve(
    turn: Turn,
    current: store.Incident,
    what: str,
    *,
    state: "store.IncidentState" = store.INCIDENT_STATE_RESOLVED,
) -> None:
    """End an incident that nobody has acted on."""
    incident = store.Incident()
    incident.CopyFrom(current)
    incident.state = state
    incident.actions.add(unix_s=turn.now, what=what)
    save(turn, incident)


def _count_detection(turn: Turn, last_progress_unix_s: float) -> None:
    totals = turn.state.totals
    detected_s = max(0.0, turn.now - last_progress_unix_s)
    turn.update(totals=dataclasses.replace(totals, detections_s=(*totals.detections_s, detected_s)))


def note_incident(turn: Turn, verdict: store.Verdict, *, last_progress_unix_s: float | None = None) -> store.Incident:
    """Keep a verdict that needs no recovery, or may not be acted on."""
    since = turn.now if last_progress_unix_s is None else last_progress_unix_s
    return _new(turn, verdict, since, store.INCIDENT_STATE_NOTED)


def act(turn: Turn, what: str) -> None:
    """Add a line to the open incident's story."""
    incident = turn.state.incidents.get(turn.record.open_incident)
    if incident is not None:
        tell(turn, incident, what)


def tell(turn: Turn, incident: store.Incident, what: str) -> None:
    """Add a line to an incident's story."""
    told = store.Incident()
    told.CopyFrom(incident)
    told.actions.add(unix_s=turn.now, what=what)
    save(turn, told)


def open_one(turn: Turn) -> store.Incident | None:
    """Return a copy of the open incident, to be changed and saved; None if there is none."""
    current = turn.state.incidents.get(turn.record.open_incident)
    if current is None:
        return None
    incident = store.Incident()
    incident.CopyFrom(current)
    return incident


def close(turn: Turn, state: "store.IncidentState", what: str, *, recovered_unix_s: float = 0.0) -> None:
    """End the open incident, if there is one."""
    incident = open_one(turn)
    if incident is None:
        return
    incident.state = state
    incident.actions.add(unix_s=turn.now, what=what)
    if recovered_unix_s:
        incident.recovered_unix_s = recovered_unix_s
        _count_recovery(turn, incident)
    save(turn, incident)
    turn.record_update(open_incident="")


def _count_recovery(turn: Turn, incident: store.Incident) -> None:
    incident.resumed_step = turn.record.resumed_step
    incident.source = turn.record.source
    incident.lost_steps = max(0, incident.reached_step - incident.resumed_step)
    lost_s = max(0.0, incident.recovered_unix_s - incident.last_progress_unix_s)
    totals = turn.state.totals.count("lost_s", kind_name(incident.verdict.kind), lost_s)
    totals = dataclasses.replace(
        totals,
        recoveries_s=(*totals.recoveries_s, lost_s),
        lost_steps=totals.lost_steps + incident.lost_steps,
    )
    turn.update(totals=totals)


def save(turn: Turn, incident: store.Incident) -> None:
    """Replace an incident in the state and order that it be kept."""
    turn.update(incidents={**turn.state.incidents, incident.id: incident})
    turn.actions.append(SaveIncident(incident))


def _new(
    turn: Turn, verdict: store.Verdict, last_progress_unix_s: float, state: "store.IncidentState"
) -> store.Incident:
    number = turn.record.incident_count + 1
    kind = kind_name(verdict.kind)
    turn.record_update(incident_count=number)
    incident = store.Incident(
        id=f"{number:04}-{kind.replace('_', '-')}",
        run=turn.record.run,
        generation=turn.record.generation,
        verdict=verdict,
        last_progress_unix_s=last_progress_unix_s,
        detected_unix_s=turn.now,
        reached_step=turn.record.newest_step,
        resumed_step=-1,
        state=state,
    )
    turn.update(totals=turn.state.totals.count("incidents", kind))
    injection.tell(turn, incident)
    save(turn, incident)
    return incident


def _supersede(turn: Turn) -> None:
    close(turn, store.INCIDENT_STATE_FAILED, "the next generation failed before its first step")
