"""Says what is wrong with a run now: what, why, and what comes next."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast_base.text import clock
from holdfast_cli.views.clean_text import cleaned, one_line
from holdfast_cli.views.phrases import is_loss_alarming, phase_text
from holdfast_core.texts.advice import advice_line, next_line
from holdfast_core.texts.hangs import awaited_calls
from holdfast_core.texts.incident_lines import incident_line
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_NOTED,
    RUN_PHASE_FAILED,
    Incident,
    RunSpec,
)

_CALLS_SHOWN = 2
_ACTIONS_SHOWN = 2


@dataclass(frozen=True)
class AttentionPanel:
    """What a person should look at now."""

    what: str
    why: tuple[str, ...]
    next: str
    is_bad: bool
    """Whether the run does not train; else it trains on and somebody should look."""


def attention(status: RunStatus) -> AttentionPanel | None:
    """Return what is wrong with a run, in texts that a terminal can show; None if nothing is known to be wrong."""
    if not status.HasField("urgent_incident"):
        if status.nodes_note:
            return AttentionPanel(one_line(status.nodes_note), (), one_line(status.nodes_advice), is_bad=False)
        if status.phase != RUN_PHASE_FAILED:
            return None
        outcome = one_line(status.outcome)
        is_bad = phase_text(status) != "stopped"
        return AttentionPanel(f"run {phase_text(status)}: {outcome}" if is_bad else outcome, (), "", is_bad)
    incident = cleaned(status.urgent_incident)
    is_noted = incident.state == INCIDENT_STATE_NOTED
    what = one_line(incident_line(incident))
    if is_noted:  # it may be over by now
        what = f"noted at {clock(incident.detected_unix_s)}: {what}"
    is_bad = not is_noted or is_loss_alarming(status)
    return AttentionPanel(what, tuple(_why(incident)), _next(status, incident), is_bad)


def _why(incident: Incident) -> Iterator[str]:
    verdict = incident.verdict
    yield from (one_line(line) for line in verdict.device_call.why)
    yield from _waits(incident)
    yield from (one_line(line) for line in verdict.calls[:_CALLS_SHOWN])
    for action in incident.actions[-_ACTIONS_SHOWN:]:
        yield f"{action.unix_s - incident.detected_unix_s:+.1f} s  {one_line(action.what)}"


def _waits(incident: Incident) -> Iterator[str]:
    for call in awaited_calls(incident.verdict.waits)[:_CALLS_SHOWN]:
        yield one_line(call.line)


def _next(status: RunStatus, incident: Incident) -> str:
    """Return what happens next, or what to do, in the words of the console."""
    if not status.HasField("settings"):  # of an older daemon: what Holdfast may do to the run is not known
        return one_line(advice_line(incident.verdict))
    settings = status.settings
    spec = RunSpec(mode=settings.mode, ranks_per_node=settings.ranks_per_node, on_hang=settings.on_hang)
    return one_line(next_line(incident, spec))
