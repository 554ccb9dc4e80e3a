"""A run's status as something that rich can draw. Pure: nothing is asked, nothing is remembered."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast_cli.control import has_ended
from holdfast_cli.views.clean_text import one_line
from holdfast_cli.views.conditions import Condition, condition, describe
from holdfast_cli.views.phrases import (
    is_loss_alarming,
    is_loss_finite,
    kept_line,
    logged_line,
    loss_phrase,
    measures,
    memory_text,
    numbers_line,
    own_time_line,
    phase_text,
    place_text,
    rank_phase_text,
    recorder_line,
    step_phrase,
    time_line,
)
from holdfast_core.naming import STANDS_STILL, time_left_text
from holdfast_core.texts.incident_lines import incident_line, outcome_line
from holdfast_proto.v1.control_pb2 import RankView, RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_FAILED,
    INCIDENT_STATE_OPEN,
    INCIDENT_STATE_STANDSTILL,
    Incident,
)

_STYLES = {
    Condition.DEAD: "bold red",
    Condition.STOPPED: "bold magenta",
    Condition.STALLED: "yellow",
    Condition.STARTING: "dim",
    Condition.WAITING: "dim",
    Condition.RUNNING: "",
    Condition.ENDED: "dim",
    Condition.FINISHED: "green",
}
_PHASE_STYLES = {"running": "bold green", "finished": "bold green", "failed": "bold red", STANDS_STILL: "bold red"}
_BAD, _ODD = "bold red", "bold yellow"
_ACTIONS_SHOWN = 6
_WIDEST = 1000
"""Columns in which any table of ranks can be measured."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Facts to show with a status that are not part of it."""

    title: str = ""
    total_steps: int | None = None
    notes: Sequence[str] = ()
    """Lines about components that were started again or are down."""
    most_ranks: int = 32
    """Rows; with more ranks the odd ones come first and the others are counted."""
    page_note: str = ""
    """Which of how many ranks are listed."""


def render(status: RunStatus, surroundings: Surroundings) -> RenderableType:
    """Return the whole view: header, ranks, newest incident."""
    parts: list[RenderableType] = [
        _header(status, surroundings),
        _Ranks(status, surroundings.most_ranks, surroundings.page_note),
    ]
    if status.HasField("newest_incident"):
        parts.append(_incident(status.newest_incident))
    parts += [Text(note, style="yellow") for note in surroundings.notes]
    return Group(*parts)


def phase_style(status: RunStatus) -> str:
    """Return the style of the phase of a run. A run whose loss is not finite is bad, whatever its phase is called.

    If an operator has acknowledged that, it is only odd.
    """
    if is_loss_finite(status):
        return _PHASE_STYLES.get(phase_text(status), _ODD)
    return _BAD if has_ended(status) or is_loss_alarming(status) else _ODD


def progress_text(status: RunStatus, total_steps: int | None) -> Text:
    """Return step, time left, loss and throughput, as far as they are known.

    ``total_steps``: None if only the ranks know it.
    """
    parts = [step_phrase(status, total_steps or status.planned_steps or None)]
    if status.HasField("time_left_s") and not has_ended(status):
        parts.append(time_left_text(status.time_left_s))
    text = Text(" · ".join([*parts, *measures(status)]))
    if not is_loss_finite(status):
        text.highlight_words([loss_phrase(status)], _BAD)
    return text


def title_text(status: RunStatus, style: str, ended: str = "") -> Text:
    """Return name, phase and generation of a run, and what it lacks. ``ended``: how it ended; "": it has not."""
    text = Text.assemble((one_line(status.run), "bold"), "  ", (phase_text(status), style))
    text.append(f"  generation {status.generation}")
    if ended:
        text.append(f"  ended: {one_line(ended)}", "bold")
    elif not status.leader:
        text.append("  (this daemon is a standby)", "dim")
    if not status.store_up:
        text.append("  Redis is unreachable: training continues", "bold yellow")
    return text


def _header(status: RunStatus, surroundings: Surroundings) -> Panel:
    lines = [title_text(status, phase_style(status)), progress_text(status, surroundings.total_steps)]
    if status.nodes_note:
        lines.append(Text(status.nodes_note, style=_ODD))
    if status.nodes_advice:
        lines.append(Text(status.nodes_advice, style="dim"))
    if numbers := numbers_line(status):
        lines.append(Text(numbers))
    if logged := logged_line(status):
        lines.append(Text(logged))
    lines.append(Text(kept_line(status), style="dim"))
    if time := time_line(status):
        lines.append(Text(time, style="dim"))
    if recorders := recorder_line(status):
        lines.append(Text(recorders, style="dim"))
    if own_time := own_time_line(status):
        lines.append(Text(own_time, style="dim"))
    if status.replicas_note:
        lines.append(Text(status.replicas_note, style="dim"))
    if status.outcome:
        lines.append(Text(status.outcome))
    return Panel(Group(*lines), title=surroundings.title or None, title_align="left", box=box.ROUNDED)


@dataclass(frozen=True)
class _Ranks:
    """The table of ranks: with their memory where it is known, and where the terminal has room for it."""

    status: RunStatus
    most: int
    note: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        judged = [(condition(rank), rank) for rank in self.status.ranks]
        counted = self.status.other_ranks
        if not counted and len(judged) > self.most:
            judged.sort(key=lambda pair: pair[0])  # else the daemon has put the oddest first
        shown = judged[: self.most]
        others = Counter(kind for kind, _ in judged[self.most :])
        for group in counted:
            others[condition(group.like)] += group.count
        with_node = bool(counted) or len({rank.node for rank in self.status.ranks}) > 1
        table = _table(shown, with_node=with_node, with_memory=any(rank.memory_bytes for _, rank in shown))
        if Measurement.get(console, options.update(max_width=_WIDEST), table).maximum > options.max_width:
            table = _table(shown, with_node=with_node, with_memory=False)
        if shown or not others:
            yield table
        if self.note:
            yield Text(self.note)
        if others:
            yield Text(f"{'and' if shown else 'ranks:'} {_count(others)}", style="dim")


def _table(judged: Sequence[tuple[Condition, RankView]], *, with_node: bool, with_memory: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ["rank", *(["node"] if with_node else []), "place", "step", "phase", "state"]
    for column in [*columns, *(["memory"] if with_memory else [])]:
        table.add_column(column, justify="right" if column in ("rank", "step", "memory") else "left")
    for judgement, rank in judged:
        cells = _cells(rank, judgement, with_node=with_node)
        table.add_row(*cells, *([memory_text(rank.memory_bytes)] if with_memory else []), style=_STYLES[judgement])
    return table


def _cells(rank: RankView, judgement: Condition, *, with_node: bool) -> list[str]:
    step = "" if rank.step < 0 else str(rank.step)
    where = [*([rank.node] if with_node else []), place_text(rank)]
    return [str(rank.rank), *where, step, rank_phase_text(rank), describe(rank, judgement)]


def _count(found: Mapping[Condition, int]) -> str:
    return ", ".join(f"{found[kind]} {kind.name.lower()}" for kind in Condition if kind in found)


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
