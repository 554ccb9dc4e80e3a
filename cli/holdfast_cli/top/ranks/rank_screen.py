"""One rank: all that its status holds, the newest incident that names it, its newest stack, and its log."""

from collections.abc import Iterator
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from holdfast_cli.top.background import LiveScreen, in_background
from holdfast_cli.top.fault_screen import FaultWanted
from holdfast_cli.top.ranks.rank_log import RankLog, log_text, read_log
from holdfast_cli.top.ranks.rank_speeds import RankSpeeds
from holdfast_cli.top.ranks.rank_stack import ShownStack, live_stack, saved_stack, stack_text
from holdfast_cli.top.run_looks import LookSource, RunLook
from holdfast_cli.views.clean_text import cleaned, one_line
from holdfast_cli.views.phrases import memory_text, place_text, recorder_line
from holdfast_core.texts.incident_lines import incident_line, outcome_line
from holdfast_proto.message_json import to_json
from holdfast_proto.v1.control_pb2 import RankView, RunStatus

_HINTS = " Esc:back  g, G:log of an older, newer generation  k:stack  x:fault  end:newest"
_OWN_LINES = ("exit", "coordinates", "oddity", "recorders", "memory_bytes", "memory_limit_bytes", "rank")
_SUMS = ("own_time_s", "own_steps", "gpu_use_sum", "gpu_use_samples")
"""Fields that are shown in another way than name and value."""


class RankScreen(LiveScreen):
    """One rank, as new as the run is. ``generation``: that of the log; None: the newest."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,left", "dismiss", show=False),
        Binding("end", "end", show=False),
        Binding("g", "generation(1)", show=False),
        Binding("G", "generation(-1)", show=False),
        Binding("k", "stack", show=False),
        Binding("x", "inject", show=False),
    ]

    def __init__(self, rank: int, look: RunLook, source: LookSource, generation: int | None = None) -> None:
        super().__init__()
        self._rank = rank
        self._look = look
        self._source = source
        self._generation = generation
        self._log = RankLog(look.status.generation)
        self._is_reading = False
        self._searched_incidents = -1
        self._is_stack_live = False

    def compose(self) -> ComposeResult:
        """Lay out the facts over the stack and the log."""
        with VerticalScroll(id="rank"):
            yield Static(id="rank-facts")
            yield Static(id="rank-stack")
            yield Static(id="rank-log")
        yield Static(Text(_HINTS, "dim", no_wrap=True))

    def on_mount(self) -> None:
        """Show what is known."""
        self.query_one("#rank", VerticalScroll).focus()
        self.show(self._look)

    def show(self, look: RunLook) -> None:
        """Show the rank in a newer state of the run."""
        self._look = look
        self.query_one("#rank-facts", Static).update(rank_facts(look, self._rank))
        self._read_log()
        if not self._is_stack_live and len(look.incidents) != self._searched_incidents:
            self._searched_incidents = len(look.incidents)
            in_background(self, lambda: saved_stack(look, self._rank), self._show_saved)

    def action_end(self) -> None:
        """Show the newest lines of the log."""
        self.query_one("#rank", VerticalScroll).scroll_end(animate=False)

    def action_generation(self, steps: int) -> None:
        """Show the log of an older generation, or of a newer one."""
        chosen = self._log.beside(steps)
        if chosen is not None:
            self._generation = None if chosen == self._look.status.generation else chosen
            self._read_log()

    def action_stack(self) -> None:
        """Take the stack of the rank now."""
        self._is_stack_live = True
        self._show_stack(ShownStack("the agent takes the stack ..."))
        in_background(self, lambda: live_stack(self._source, self._rank), self._show_stack)

    def action_inject(self) -> None:
        """Ask which fault to inject."""
        self.app.post_message(FaultWanted(self._rank))

    def _read_log(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            look, wanted = self._look, self._generation
            in_background(self, lambda: (wanted, read_log(look, self._rank, wanted)), self._show_log)

    def _show_log(self, found: tuple[int | None, RankLog]) -> None:
        self._is_reading = False
        wanted, self._log = found
        self.query_one("#rank-log", Static).update(log_text(self._log, self._look, self._rank))
        if wanted != self._generation:  # another one was chosen in the time that this took
            self._read_log()

    def _show_saved(self, stack: ShownStack) -> None:
        if not self._is_stack_live:
            self._show_stack(stack)

    def _show_stack(self, stack: ShownStack) -> None:
        self.query_one("#rank-stack", Static).update(stack_text(stack))


def rank_facts(look: RunLook, number: int) -> Group:
    """Return all fields of a rank and the newest incident that names it."""
    found = look.rank(number)
    if found is None:
        return Group(Text(f"rank {number}", "bold"), Text("the run has no such rank now"))
    view = cleaned(found.view)
    table = Table.grid(padding=(0, 2))
    for name, value in (*_facts(view), *_speeds(look.judged.speeds, number)):
        table.add_row(Text(name, "dim"), Text(value))
    title = Text.assemble((f"rank {number}", "bold"), f"  {one_line(look.judged.state_text(found))}")
    return Group(title, table, *_incident_lines(look, number))


def _facts(view: RankView) -> Iterator[tuple[str, str]]:
    yield "place", place_text(view) or "not known"
    for name, value in to_json(view).items():
        if name not in (*_OWN_LINES, *_SUMS) and value not in ("", "unspecified"):
            yield name.replace("_", " "), f"{value:.3g}" if isinstance(value, float) else str(value)
    if view.memory_bytes:
        limit = f" of {memory_text(view.memory_limit_bytes)}" if view.memory_limit_bytes else ""
        yield "memory", f"{memory_text(view.memory_bytes)}{limit}"
    if recorders := recorder_line(RunStatus(ranks=[view])):
        yield "recorders", recorders.removeprefix("recorders: ")
    if view.HasField("exit"):
        for name, value in to_json(view.exit).items():
            yield f"exit: {name.replace('_', ' ')}", str(value)


def _speeds(speeds: RankSpeeds, number: int) -> Iterator[tuple[str, str]]:
    if (own_s := speeds.own_step_s.get(number)) is not None:
        yield "own time of a step", f"{own_s:.3g} s (median of all ranks {speeds.median_step_s:.3g} s)"
    if (use := speeds.gpu_use.get(number)) is not None:
        yield "use of the GPU", f"{use:.0%} of the time"


def _incident_lines(look: RunLook, number: int) -> list[Text]:
    incidents = [one for one in (*look.incidents, look.status.newest_incident) if number in one.verdict.culprits]
    newest = max(incidents, key=lambda incident: incident.detected_unix_s, default=None)
    if newest is None:
        return [Text("\nno incident names this rank", "dim")]
    incident = cleaned(newest)
    lines = [Text(f"\nincident {incident.id}", "bold"), Text(incident_line(incident))]
    return [*lines, *([Text(outcome)] if (outcome := outcome_line(incident)) else [])]
