"""Opening, completing and closing incidents."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

from holdfast_core import fault_requests, witnesses
from holdfast_core.model import ForgetIncident, SaveIncident, counted
from holdfast_core.naming import kind_name
from holdfast_core.reading.attention import bad_loss_incident
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

MOST_LINES = 200
"""Most lines of an incident's story. It keeps the first and the newest: how it began, and how it is now."""
_FIRST_LINES = 50
MOST_FILES_NAMED = 512
"""Most files of evidence that an incident names: it must not grow with the run, because each change copies it."""
INCIDENTS_KEPT = 256
"""Most incidents in the state and in the store: each new leader reads all of them, and each new one copies the map."""


def open_incident(tick: Tick, verdict: store.Verdict, *, last_progress_unix_s: float) -> store.Incident:
    """Open an incident for a verdict that a restart follows. An older open incident ends as failed."""
    _supersede(tick)
    incident = _new(tick, verdict, last_progress_unix_s, store.INCIDENT_STATE_OPEN)
    with tick.edit_record() as record:
        record.open_incident = incident.id
    _count_detection(tick, last_progress_unix_s)
    return incident


def open_standstill(tick: Tick, verdict: store.Verdict, *, last_progress_unix_s: float) -> store.Incident:
    """Begin an incident for a standstill that may still end by itself."""
    incident = _new(tick, verdict, last_progress_unix_s, store.INCIDENT_STATE_STANDSTILL)
    _count_detection(tick, last_progress_unix_s)
    return incident


def reopen(tick: Tick, standstill: store.Incident, verdict: store.Verdict) -> store.Incident:
    """Open the incident of a standstill that a restart follows, with its newest verdict.

    An older open incident ends as failed.
    """
    _supersede(tick)
    with edit(tick, standstill) as incident:
        incident.verdict.CopyFrom(verdict)
        incident.state = store.INCIDENT_STATE_OPEN
        incident.reached_step = tick.record.newest_step
    with tick.edit_record() as record:
        record.open_incident = incident.id
    return incident


def resolve(
    tick: Tick,
    current: store.Incident,
    what: str,
    *,
    state: "store.IncidentState" = store.INCIDENT_STATE_RESOLVED,
) -> None:
    """End an incident that no restart followed."""
    with edit(tick, current) as incident:
        incident.state = state
        incident.actions.add(unix_s=tick.now, what=what)


def resolve_noted(tick: Tick, kind: "store.VerdictKind", what: str, culprits: Sequence[int] = ()) -> None:
    """End the newest incident of a kind that needed no restart, if this leader knows of one.

    ``culprits``: those of its verdict; empty: any.
    """
    noted = (
        incident
        for incident in tick.state.incidents.values()
        if incident.verdict.kind == kind
        and incident.state == store.INCIDENT_STATE_NOTED
        and (not culprits or list(incident.verdict.culprits) == list(culprits))
    )
    newest = max(noted, key=lambda incident: incident.detected_unix_s, default=None)
    if newest is not None:
        resolve(tick, newest, what)


def reported_key(kind: "store.VerdictKind", culprits: Sequence[int]) -> str:
    """Return the beginning of the keys under which a verdict is reported once. The step follows."""
    return f"{kind} {list(culprits)} at step "


def _count_detection(tick: Tick, last_progress_unix_s: float) -> None:
    totals = tick.state.totals
    detected = totals.detections.add(max(0.0, tick.now - last_progress_unix_s))
    tick.state = replace(tick.state, totals=replace(totals, detections=detected))


def note_incident(tick: Tick, verdict: store.Verdict, *, last_progress_unix_s: float | None = None) -> store.Incident:
    """Keep a verdict that needs no restart, or that the mode of the run allows none for."""
    since = tick.now if last_progress_unix_s is None else last_progress_unix_s
    return _new(tick, verdict, since, store.INCIDENT_STATE_NOTED)


def name_files(incident: store.Incident, names: Iterable[str]) -> None:
    """Add names of files to an incident's evidence, up to :data:`MOST_FILES_NAMED`: its folder has all files."""
    known = set(incident.evidence)
    new = (name for name in dict.fromkeys(names) if name not in known)
    incident.evidence.extend(islice(new, max(0, MOST_FILES_NAMED - len(known))))


def add_line_to_open(tick: Tick, what: str) -> None:
    """Add a line to the open incident's story."""
    incident = open_one(tick)
    if incident is not None:
        add_line(tick, incident, what)


def add_line(tick: Tick, incident: store.Incident, what: str) -> None:
    """Add a line to an incident's story."""
    with edit(tick, incident) as edited:
        edited.actions.add(unix_s=tick.now, what=what)


def open_one(tick: Tick) -> store.Incident | None:
    """Return the open incident; None if there is none."""
    return tick.state.incidents.get(tick.record.open_incident)


def close(tick: Tick, state: "store.IncidentState", what: str, *, recovered_unix_s: float = 0.0) -> None:
    """End the open incident, if there is one."""
    current = open_one(tick)
    if current is None:
        return
    with edit(tick, current) as incident:
        incident.state = state
        incident.actions.add(unix_s=tick.now, what=what)
        if recovered_unix_s:
            incident.recovered_unix_s = recovered_unix_s
            _count_recovery(tick, incident)
    with tick.edit_record() as record:
        record.open_incident = ""


def _count_recovery(tick: Tick, incident: store.Incident) -> None:
    incident.resumed_step = tick.record.resumed_step
    incident.source = tick.record.source
    incident.lost_unknown = tick.record.counts_anew
    incident.lost_steps = 0 if incident.lost_unknown else max(0, incident.reached_step - incident.resumed_step)
    lost_s = max(0.0, incident.recovered_unix_s - incident.last_progress_unix_s)
    kind, totals = kind_name(incident.verdict.kind), tick.state.totals
    totals = replace(
        totals,
        lost_s={**totals.lost_s, kind: totals.lost_s.get(kind, 0.0) + lost_s},
        recoveries=totals.recoveries.add(lost_s),
        lost_steps=totals.lost_steps + incident.lost_steps,
    )
    tick.state = replace(tick.state, totals=totals)


@contextmanager
def edit(tick: Tick, incident: store.Incident) -> Iterator[store.Incident]:
    """Yield a copy of an incident to fill in: at the end of the block it takes the incident's place and is kept."""
    edited = store.Incident()
    edited.CopyFrom(incident)
    yield edited
    _save(tick, edited)


def acknowledge(tick: Tick, identity: str) -> None:
    """Note that an operator knows of an incident. One that the leader does not know is left alone: it may be old."""
    current = tick.state.incidents.get(identity)
    if current is not None and not current.acknowledged_unix_s:
        with edit(tick, current) as incident:
            incident.acknowledged_unix_s = tick.now
            incident.actions.add(unix_s=tick.now, what="acknowledged by an operator")


def _place_culprits(tick: Tick, incident: store.Incident) -> None:
    """Write into an incident where its culprits run: evidence may name other ones than the first verdict did.

    Nothing is known about the ranks of an earlier generation any more.
    """
    named = list(incident.verdict.culprits)
    if incident.generation != tick.record.generation or [place.rank for place in incident.culprits] == named:
        return
    places: dict[int, store.CulpritPlace] = {}
    for name in tick.record.nodes:
        for node in (tick.state.heard_of.get(name), tick.state.nodes.get(name)):
            if node is not None and node.generation == incident.generation:
                places |= {one.rank: store.CulpritPlace(rank=one.rank, node=name, pid=one.pid) for one in node.ranks}
    del incident.culprits[:]
    incident.culprits.extend(places.get(rank, store.CulpritPlace(rank=rank)) for rank in named)
    incident.nodes = len(tick.record.nodes)


def _save(tick: Tick, incident: store.Incident) -> None:
    _place_culprits(tick, incident)
    if len(incident.actions) > MOST_LINES:
        del incident.actions[_FIRST_LINES : len(incident.actions) - (MOST_LINES - _FIRST_LINES)]
    known = {**tick.state.incidents, incident.id: incident}
    loss = bad_loss_incident(tick.state)
    forgotten = _to_forget(tick.record, known, {incident.id, loss.id if loss is not None else ""})
    kept = {name: one for name, one in known.items() if name not in forgotten} if forgotten else known
    tick.state = replace(tick.state, incidents=kept)
    tick.actions.append(SaveIncident(incident))
    tick.actions.extend(map(ForgetIncident, forgotten))


def _to_forget(record: store.CoordinatorState, known: Mapping[str, store.Incident], needed: set[str]) -> list[str]:
    """Return the oldest of more than :data:`INCIDENTS_KEPT` incidents.

    Those that the record names are not over yet. They stay, and so do those that are ``needed``.
    """
    excess = len(known) - INCIDENTS_KEPT
    if excess <= 0:
        return []
    outage = record.checkpoint_outage.incident
    needed = needed | {record.open_incident, record.standstill_incident, record.reads_incident, outage}
    oldest_first = sorted(known, key=lambda name: known[name].detected_unix_s)
    return [name for name in oldest_first if name not in needed][:excess]


def _new(
    tick: Tick, verdict: store.Verdict, last_progress_unix_s: float, state: "store.IncidentState"
) -> store.Incident:
    number = tick.record.incident_count + 1
    kind = kind_name(verdict.kind)
    with tick.edit_record() as record:
        record.incident_count = number
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
    totals = tick.state.totals
    tick.state = replace(tick.state, totals=replace(totals, incidents=counted(totals.incidents, kind)))
    fault_requests.add_to_story(tick, incident)
    witnesses.add_to_story(tick, incident)
    _save(tick, incident)
    return incident


def _supersede(tick: Tick) -> None:
    close(tick, store.INCIDENT_STATE_FAILED, "the next generation failed before its first step")
