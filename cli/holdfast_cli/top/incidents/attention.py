"""Says what is wrong with a run now: what, why, and what comes next."""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast_cli.control import has_ended
from holdfast_cli.incidents.wait_tree import ranks_text
from holdfast_cli.views.clean_text import cleaned, one_line
from holdfast_cli.views.phrases import phase_word
from holdfast_daemon.core.texts.advice import advice_line, next_line
from holdfast_daemon.core.texts.incident_lines import incident_line
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_FAILED,
    INCIDENT_STATE_NOTED,
    INCIDENT_STATE_OPEN,
    INCIDENT_STATE_STANDSTILL,
    RUN_PHASE_FAILED,
    Incident,
    RunSpec,
)

NOTED_FOR_S = 300.0
"""Seconds for which an incident that needs no recovery is shown: as long as an alert of that kind stays."""

_CALLS_SHOWN = 2
_ACTIONS_SHOWN = 2


@dataclass(frozen=True)
class Attention:
    """What a person should look at now."""

    what: str
    why: tuple[str, ...]
    next: str
    is_bad: bool
    """Whether the run does not train; else it trains on and somebody should look."""


def present_incident(status: RunStatus) -> Incident | None:
    """Return the newest incident if it is about the present state of the run, or None."""
    if not status.HasField("newest_incident"):
        return None
    newest = status.newest_incident
    match newest.state:
        case _ if status.phase == RUN_PHASE_FAILED:
            is_present = newest.state == INCIDENT_STATE_FAILED
        case _ if has_ended(status):
            is_present = False
        case state if state == INCIDENT_STATE_NOTED:
            is_present = status.now_unix_s - newest.detected_unix_s < NOTED_FOR_S
        case state:
            is_present = state in (INCIDENT_STATE_OPEN, INCIDENT_STATE_STANDSTILL)
    return newest if is_present else None


def attention(status: RunStatus) -> Attention | None:
    """Return what is wrong with a run, in texts that a terminal can show; None if nothing is known to be wrong."""
    present = present_incident(status)
    if present is None:
        if status.phase != RUN_PHASE_FAILED:
            return None
        outcome = one_line(status.outcome)
        is_bad = phase_word(status) != "stopped"
        return Attention(f"run {phase_word(status)}: {outcome}" if is_bad else outcome, (), "", is_bad)
    incident = cleaned(present)
    is_bad = incident.state != INCIDENT_STATE_NOTED
    what = one_line(incident_line(incident))
    if not is_bad:  # it may be over by now
        what = f"noted at {time.strftime('%H:%M:%S', time.localtime(incident.detected_unix_s))}: {what}"
    return Attention(what, tuple(_why(incident)), _next(status, incident), is_bad)


def _why(incident: Incident) -> Iterator[str]:
    verdict = incident.verdict
    if verdict.HasField("device_call"):
        yield from (one_line(line) for line in verdict.device_call.why)
    else:
        yield from _waits(incident)
        yield from (one_line(line) for line in verdict.calls[:_CALLS_SHOWN])
    for action in incident.actions[-_ACTIONS_SHOWN:]:
        yield f"{action.unix_s - incident.detected_unix_s:+.1f} s  {one_line(action.what)}"


def _waits(incident: Incident) -> Iterator[str]:
    waiters: dict[tuple[int, str], list[int]] = defaultdict(list)
    for edge in incident.verdict.waits:
        waiters[edge.awaited, one_line(f"{edge.op} {edge.seq} of {edge.group}")].append(edge.waiter)
    for (awaited, call), ranks in list(waiters.items())[:_CALLS_SHOWN]:
        verb = "waits" if len(set(ranks)) == 1 else "wait"
        yield f"{ranks_text(ranks)} {verb} for rank {awaited} in {call}"


def _next(status: RunStatus, incident: Incident) -> str:
    """Return what happens next, or what to do, in the words of the console."""
    if not status.HasField("settings"):  # of an older daemon: what Holdfast may do to the run is not known
        return one_line(advice_line(incident.verdict))
    settings = status.settings
    spec = RunSpec(mode=settings.mode, ranks_per_node=settings.ranks_per_node, on_hang=settings.on_hang)
    return one_line(next_line(incident, spec))
