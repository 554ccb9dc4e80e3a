"""Opening, completing and closing incidents."""

import dataclasses

from holdfast_daemon.core import injection
from holdfast_daemon.core.model import SaveIncident
from holdfast_daemon.core.tick import Tick
from holdfast_daemon.core.words import kind_name
from holdfast_proto.v1 import store_pb2 as store


def open_incident(tick: Tick, verdict: store.Verdict, *, last_progress_unix_s: float) -> store.Incident:
    """Begin the story of a verdict that will be acted on. An older open one ends as superseded."""
    _supersede(tick)
    incident = _new(tick, verdict, last_progress_unix_s, store.INCIDENT_STATE_OPEN)
    tick.record_update(open_incident=incident.id)
    _count_detection(tick, last_progress_unix_s)
    return incident


def open_standstill(tick: Tick, verdict: store.Verdict, *, last_progress_unix_s: float) -> store.Incident:
    """Begin the story of a standstill that is given time."""
    incident = _new(tick, verdict, last_progress_unix_s, store.INCIDENT_STATE_STANDSTILL)
    _count_detection(tick, last_progress_unix_s)
    return incident


def reopen(tick: Tick, standstill: store.Incident, verdict: store.Verdict) -> store.Incident:
    """Act on a standstill that was given time. The verdict is as of now; an older open incident ends as superseded."""
    _supersede(tick)
    incident = store.Incident()
    incident.CopyFrom(standstill)
    incident.verdict.CopyFrom(verdict)
    incident.state = store.INCIDENT_STATE_OPEN
    incident.reached_step = tick.record.newest_step
    tick.record_update(open_incident=incident.id)
    save(tick, incident)
    return incident


def resolve(
    tick: Tick,
    current: store.Incident,
    what: str,
    *,
    state: "store.IncidentState" = store.INCIDENT_STATE_RESOLVED,
) -> None:
    """End an incident that nobody has acted on."""
    incident = store.Incident()
    incident.CopyFrom(current)
    incident.state = state
    incident.actions.add(unix_s=tick.now, what=what)
    save(tick, incident)


def _count_detection(tick: Tick, last_progress_unix_s: float) -> None:
    totals = tick.state.totals
    detected_s = max(0.0, tick.now - last_progress_unix_s)
    tick.update(totals=dataclasses.replace(totals, detections_s=(*totals.detections_s, detected_s)))


def note_incident(tick: Tick, verdict: store.Verdict, *, last_progress_unix_s: float | None = None) -> store.Incident:
    """Keep a verdict that needs no recovery, or may not be acted on."""
    since = tick.now if last_progress_unix_s is None else last_progress_unix_s
    return _new(tick, verdict, since, store.INCIDENT_STATE_NOTED)


def act(tick: Tick, what: str) -> None:
    """Add a line to the open incident's story."""
    incident = tick.state.incidents.get(tick.record.open_incident)
    if incident is not None:
        tell(tick, incident, what)


def tell(tick: Tick, incident: store.Incident, what: str) -> None:
    """Add a line to an incident's story."""
    edited = store.Incident()
    edited.CopyFrom(incident)
    edited.actions.add(unix_s=tick.now, what=what)
    save(tick, edited)


def open_one(tick: Tick) -> store.Incident | None:
    """Return a copy of the open incident, to be changed and saved; None if there is none."""
    current = tick.state.incidents.get(tick.record.open_incident)
    if current is None:
        return None
    incident = store.Incident()
    incident.CopyFrom(current)
    return incident


def close(tick: Tick, state: "store.IncidentState", what: str, *, recovered_unix_s: float = 0.0) -> None:
    """End the open incident, if there is one."""
    incident = open_one(tick)
    if incident is None:
        return
    incident.state = state
    incident.actions.add(unix_s=tick.now, what=what)
    if recovered_unix_s:
        incident.recovered_unix_s = recovered_unix_s
        _count_recovery(tick, incident)
    save(tick, incident)
    tick.record_update(open_incident="")


def _count_recovery(tick: Tick, incident: store.Incident) -> None:
    incident.resumed_step = tick.record.resumed_step
    incident.source = tick.record.source
    incident.lost_steps = max(0, incident.reached_step - incident.resumed_step)
    lost_s = max(0.0, incident.recovered_unix_s - incident.last_progress_unix_s)
    totals = tick.state.totals.count("lost_s", kind_name(incident.verdict.kind), lost_s)
    totals = dataclasses.replace(
        totals,
        recoveries_s=(*totals.recoveries_s, lost_s),
        lost_steps=totals.lost_steps + incident.lost_steps,
    )
    tick.update(totals=totals)


def save(tick: Tick, incident: store.Incident) -> None:
    """Replace an incident in the state and order that it be kept."""
    tick.update(incidents={**tick.state.incidents, incident.id: incident})
    tick.actions.append(SaveIncident(incident))


def _new(
    tick: Tick, verdict: store.Verdict, last_progress_unix_s: float, state: "store.IncidentState"
) -> store.Incident:
    number = tick.record.incident_count + 1
    kind = kind_name(verdict.kind)
    tick.record_update(incident_count=number)
    incident = store.Incident(
        id=f"{number:04}-{kind.replace('_', '-')}",
        run=tick.record.run,
        generation=tick.record.generation,
        verdict=verdict,
        last_progress_unix_s=last_progress_unix_s,
        detected_unix_s=tick.now,
        reached_step=tick.record.newest_step,
        resumed_step=-1,
        state=state,
    )
    tick.update(totals=tick.state.totals.count("incidents", kind))
    injection.tell(tick, incident)
    save(tick, incident)
    return incident


def _supersede(tick: Tick) -> None:
    close(tick, store.INCIDENT_STATE_FAILED, "the next generation failed before its first step")
