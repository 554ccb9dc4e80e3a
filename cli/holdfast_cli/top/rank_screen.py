"""One rank: all that its status holds, the newest incident that names it, and the end of its log."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from holdfast_cli.rank_logs.log_files import logs_by_generation
from holdfast_cli.rank_logs.log_tail import LogTail
from holdfast_cli.top.background import in_background
from holdfast_cli.top.run_source import Look
from holdfast_cli.views.clean_text import cleaned, one_line, some_lines
from holdfast_cli.views.phrases import memory_word, recorder_line
from holdfast_daemon.core.texts.incident_lines import incident_line, outcome_line
from holdfast_proto.message_json import to_json
from holdfast_proto.v1.control_pb2 import RankView, RunStatus

LOG_LINES = 200
_OWN_LINES = ("exit", "coordinates", "recorders", "memory_bytes", "memory_limit_bytes", "rank")
"""Fields that are shown in another way than name and value."""


class RankScreen(Screen[None]):
    """One rank, as new as the run is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,left", "dismiss", show=False),
        Binding("end", "end", show=False),
    ]

    def __init__(self, rank: int, look: Look) -> None:
        super().__init__()
        self._rank = rank
        self._look = look
        self._is_reading = False

    def compose(self) -> ComposeResult:
        """Lay out the facts over the log."""
        with VerticalScroll(id="rank"):
            yield Static(id="rank-facts")
            yield Static(id="rank-log")
        yield Static(Text(" Esc: back  end: newest line of the log", "dim"))

    def on_mount(self) -> None:
        """Show what is known."""
        self.show(self._look)

    def show(self, look: Look) -> None:
        """Show the rank in a newer state of the run."""
        self._look = look
        self.query_one("#rank-facts", Static).update(rank_facts(look, self._rank))
        if not self._is_reading:
            self._is_reading = True
            in_background(self.app, lambda: log_end(look, self._rank), self._show_log)

    def action_end(self) -> None:
        """Show the newest lines of the log."""
        self.query_one("#rank", VerticalScroll).scroll_end(animate=False)

    def _show_log(self, lines: Text) -> None:
        self._is_reading = False
        if self.is_attached:
            self.query_one("#rank-log", Static).update(lines)


def rank_facts(look: Look, number: int) -> Group:
    """Return all fields of a rank and the newest incident that names it."""
    found = next((rank for rank in look.judged.ranks if rank.number == number), None)
    if found is None:
        return Group(Text(f"rank {number}", "bold"), Text("the run has no such rank now"))
    view = cleaned(found.view)
    table = Table.grid(padding=(0, 2))
    for name, value in _facts(view):
        table.add_row(Text(name, "dim"), Text(value))
    title = Text.assemble((f"rank {number}", "bold"), f"  {one_line(look.judged.state_text(found))}")
    return Group(title, table, *_incident_lines(look, number))


def _facts(view: RankView) -> Iterator[tuple[str, str]]:
    yield "place", " ".join(f"{axis}{index}" for axis, index in sorted(view.coordinates.items())) or "not known"
    for name, value in to_json(view).items():
        if name not in _OWN_LINES and value not in ("", "unspecified"):
            yield name.replace("_", " "), f"{value:.3g}" if isinstance(value, float) else str(value)
    if view.memory_bytes:
        limit = f" of {memory_word(view.memory_limit_bytes)}" if view.memory_limit_bytes else ""
        yield "memory", f"{memory_word(view.memory_bytes)}{limit}"
    if recorders := recorder_line(RunStatus(ranks=[view])):
        yield "recorders", recorders.removeprefix("recorders: ")
    if view.HasField("exit"):
        for name, value in to_json(view.exit).items():
            yield f"exit: {name.replace('_', ' ')}", str(value)


def _incident_lines(look: Look, number: int) -> list[Text]:
    incidents = [one for one in (*look.incidents, look.status.newest_incident) if number in one.verdict.culprits]
    newest = max(incidents, key=lambda incident: incident.detected_unix_s, default=None)
    if newest is None:
        return [Text("\nno incident names this rank", "dim")]
    incident = cleaned(newest)
    lines = [Text(f"\nincident {incident.id}", "bold"), Text(incident_line(incident))]
    return [*lines, *([Text(outcome)] if (outcome := outcome_line(incident)) else [])]


def log_end(look: Look, number: int) -> Text:
    """Return the end of a rank's log, or why it is not here. Reads files."""
    record = look.target.record
    if record is None:
        return Text("\nno log here: `holdfast run` has not started this run on this machine", "dim")
    if record.observed:
        return Text("\nno log: another launcher has started the ranks, and it has their output", "dim")
    try:
        logs = logs_by_generation(Path(record.directory)).get(look.status.generation, {})
        lines = LogTail(logs[number]).newest(LOG_LINES) if number in logs else None
    except OSError as error:
        return Text(f"\nthe log cannot be read: {one_line(str(error))}", "yellow")
    if lines is None:
        return Text(f"\nno log of this rank in generation {look.status.generation} on this machine", "dim")
    text = Text(f"\nlog, newest {len(lines)} lines\n" if lines else "\nthe log is empty\n", "bold")
    return text.append("\n".join(map(some_lines, lines)), "not bold")
