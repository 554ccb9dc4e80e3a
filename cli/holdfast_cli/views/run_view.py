"""A run's status as something that rich can draw. Pure: nothing is asked, nothing is remembered."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast_cli.views.conditions import Condition, condition, describe
from holdfast_cli.views.phrases import enum_phrase, incident_line, kept_line, outcome_line, progress_line
from holdfast_proto.v1 import common_pb2
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_FAILED,
    INCIDENT_STATE_OPEN,
    INCIDENT_STATE_STANDSTILL,
    Incident,
    RunPhase,
)

_STYLES = {
    Condition.DEAD: "bold red",
    Condition.STOPPED: "bold magenta",
    Condition.STALLED: "yellow",
    Condition.STARTING: "dim",
    Condition.RUNNING: "",
    Condition.FINISHED: "green",
}
_PHASE_STYLES = {"running": "bold green", "finished": "bold green", "failed": "bold red"}
_ACTIONS_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Facts to show with a status that are not part of it."""

    title: str = ""
    total_steps: int | None = None
    notes: Sequence[str] = ()
    """Lines about components that were started again or are down."""
    most_ranks: int = 32
    """Rows; with more ranks the odd ones come first and the others are counted."""


def render(status: RunStatus, surroundings: Surroundings) -> RenderableType:
    """Return the whole view: header, ranks, newest incident."""
    parts: list[RenderableType] = [_header(status, surroundings), _ranks(status, surroundings.most_ranks)]
    if status.HasField("newest_incident"):
        parts.append(_incident(status.newest_incident))
    parts += [Text(note, style="yellow") for note in surroundings.notes]
    return Group(*parts)


def _header(status: RunStatus, surroundings: Surroundings) -> Panel:
    phase = enum_phrase(RunPhase, status.phase)
    first = Text.assemble((status.run, "bold"), "  ", (phase, _PHASE_STYLES.get(phase, "bold yellow")))
    first.append(f"  generation {status.generation}")
    if not status.leader:
        first.append("  (this daemon is a standby)", style="dim")
    if not status.store_up:
        first.append("  Redis is unreachable: training continues", style="bold yellow")
    lines = [first, Text(progress_line(status, surroundings.total_steps)), Text(kept_line(status), style="dim")]
    if status.replicas_note:
        lines.append(Text(status.replicas_note, style="dim"))
    if status.outcome:
        lines.append(Text(status.outcome))
    return Panel(Group(*lines), title=surroundings.title or None, title_align="left", box=box.ROUNDED)


def _ranks(status: RunStatus, most: int) -> RenderableType:
    judged = [(condition(rank, status.deadline_s), rank) for rank in status.ranks]
    if len(judged) > most:
        judged.sort(key=lambda pair: (pair[0], pair[1].rank))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    nodes = {rank.node for rank in status.ranks}
    for column in ("rank", *(["node"] if len(nodes) > 1 else []), "place", "step", "phase", "state"):
        table.add_column(column, justify="right" if column in ("rank", "step") else "left")
    for judgement, rank in judged[:most]:
        table.add_row(*_cells(rank, judgement, with_node=len(nodes) > 1), style=_STYLES[judgement])
    if len(judged) <= most:
        return table
    return Group(table, Text(f"and {_count(judged[most:])}", style="dim"))


def _cells(rank: RankView, judgement: Condition, *, with_node: bool) -> list[str]:
    place = " ".join(f"{axis}{index}" for axis, index in sorted(rank.coordinates.items()))
    phase = enum_phrase(common_pb2.Phase, rank.phase)
    step = "" if rank.step < 0 else str(rank.step)
    return [str(rank.rank), *([rank.node] if with_node else []), place, step, phase, describe(rank, judgement)]


def _count(judged: Sequence[tuple[Condition, RankView]]) -> str:
    found = [judgement for judgement, _ in judged]
    return ", ".join(f"{found.count(kind)} {kind.name.lower()}" for kind in Condition if kind in found)


def _incident(incident: Incident) -> Panel:
    lines = [Text(incident_line(incident), style="bold")]
    actions = incident.actions[-_ACTIONS_SHOWN:]
    lines += [Text(f"{action.unix_s - incident.detected_unix_s:+6.1f} s  {action.what}") for action in actions]
    outcome = outcome_line(incident)
    if outcome:
        lines.append(Text(outcome, style="green"))
    styles = {INCIDENT_STATE_OPEN: "yellow", INCIDENT_STATE_STANDSTILL: "yellow", INCIDENT_STATE_FAILED: "red"}
    return Panel(
        Group(*lines), title=f"incident {incident.id}", title_align="left", box=box.ROUNDED,
        border_style=styles.get(incident.state, "green"),
    )  # fmt: skip
