"""Incidents, and the kinds of things in them, in one line for people: on terminals and in the console."""

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from holdfast_proto.message_json import enum_name
from holdfast_proto.v1.store_pb2 import CulpritPlace, Incident, IncidentState, VerdictKind

_PLACES_SHOWN = 3


def enum_phrase(kind: EnumTypeWrapper, value: int) -> str:
    """Return ``VERDICT_KIND_HUNG_COLLECTIVE`` as ``hung collective``, and an unknown number as itself."""
    return enum_name(kind, value).replace("_", " ")


def number_of(number: int, noun: str) -> str:
    """Return ``1 step`` or ``2 steps``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def verdict_label(incident: Incident) -> str:
    """Return the kind of an incident's verdict."""
    return enum_phrase(VerdictKind, incident.verdict.kind)


def what_line(incident: Incident) -> str:
    """Return what an incident is about. In a run of several nodes, it says where the culprits run."""
    what = incident.verdict.message or verdict_label(incident)
    return f"{what} ({places_text(incident)})" if incident.nodes > 1 and incident.culprits else what


def places_text(incident: Incident) -> str:
    """Return ``rank 5: node-2, pid 4711`` for the first few culprits of an incident; "" without any."""
    places = incident.culprits
    shown = "; ".join(map(_place, places[:_PLACES_SHOWN]))
    more = len(places) - _PLACES_SHOWN
    return f"{shown}; and {number_of(more, 'more rank')}" if more > 0 else shown


def _place(place: CulpritPlace) -> str:
    parts = [place.node or "node unknown", *([f"pid {place.pid}"] if place.pid else [])]
    return f"rank {place.rank}: {', '.join(parts)}"


def incident_line(incident: Incident) -> str:
    """Return an incident in one line."""
    state = enum_phrase(IncidentState, incident.state)
    return f"{what_line(incident)} [{state}]"


def outcome_line(incident: Incident) -> str:
    """Return how long a recovery took and what it cost, or "" while there is none."""
    if not incident.recovered_unix_s:
        return ""
    took_s = incident.recovered_unix_s - incident.detected_unix_s
    again = f"training again {took_s:.1f} s after detection"
    if incident.lost_unknown:
        return f"{again}, from what the script itself restored"
    return f"{again}, {number_of(incident.lost_steps, 'step')} lost"
