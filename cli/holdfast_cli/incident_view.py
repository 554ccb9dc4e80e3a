"""Incidents as something that rich can draw."""

import time
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast_cli.words import enum_word, incident_line, outcome_line, verdict_word
from holdfast_proto.v1 import common_pb2
from holdfast_proto.v1.store_pb2 import Incident, IncidentState, Source


def incident_table(incidents: Sequence[Incident]) -> RenderableType:
    """Return one row per incident, oldest first."""
    if not incidents:
        return Text("no incidents")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("id", "detected", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("what")
    for incident in incidents:
        state = enum_word(IncidentState, "INCIDENT_STATE_", incident.state)
        what = incident.verdict.message or verdict_word(incident)
        table.add_row(incident.id, _clock(incident.detected_unix_s), state, what)
    return table


def incident_story(incident: Incident) -> RenderableType:
    """Return everything that is known of an incident."""
    verdict = incident.verdict
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("kind", verdict_word(incident)),
        ("ranks", _ranks(incident)),
        ("where", f"step {verdict.step}, {enum_word(common_pb2.Phase, 'PHASE_', verdict.phase)}, {_call(incident)}"),
        ("confidence", f"{verdict.confidence_ratio:.0%}"),
        ("generation", str(incident.generation)),
        ("last progress", _clock(incident.last_progress_unix_s)),
        ("detected", _clock(incident.detected_unix_s)),
        ("resumed", _resumed(incident)),
        ("outcome", outcome_line(incident) or enum_word(IncidentState, "INCIDENT_STATE_", incident.state)),
    ):
        facts.add_row(Text(name, style="dim"), Text(value))
    parts: list[RenderableType] = [Text(incident_line(incident), style="bold"), facts]
    for heading, lines in (
        ("who waits for whom", _waits(incident)),
        ("what was done", [f"{a.unix_s - incident.detected_unix_s:+8.2f} s  {a.what}" for a in incident.actions]),
        ("evidence", list(incident.evidence)),
    ):
        if lines:
            parts += [Text(heading, style="dim"), *(Text(f"  {line}") for line in lines)]
    return Group(*parts)


def _waits(incident: Incident) -> list[str]:
    return [
        f"rank {edge.waiter} for rank {edge.awaited}: {edge.op} {edge.seq} of {edge.group}"
        for edge in incident.verdict.waits
    ]


def _ranks(incident: Incident) -> str:
    return ", ".join(str(rank) for rank in incident.verdict.culprits) or "-"


def _call(incident: Incident) -> str:
    verdict = incident.verdict
    return f"{verdict.op or 'call'} {verdict.seq} of {verdict.group}" if verdict.group else "in no collective"


def _resumed(incident: Incident) -> str:
    if not incident.recovered_unix_s:
        return "-"
    source = enum_word(Source, "SOURCE_", incident.source)
    return f"step {incident.resumed_step} from {source}" if incident.resumed_step >= 0 else "from the seed"


def _clock(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s else "-"
