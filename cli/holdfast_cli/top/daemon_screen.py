"""Holdfast itself: the daemon's store, ticks and detectors, what it has refused, and the agents that it hears of."""

from collections.abc import Iterator
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from holdfast_cli.errors import CommandError
from holdfast_cli.top.background import LiveScreen, in_background
from holdfast_cli.top.run_looks import LookSource, RunLook, reason_of
from holdfast_cli.views.clean_text import cleaned
from holdfast_cli.views.phrases import duration
from holdfast_proto.v1.control_pb2 import DaemonStatus

AGENTS_SHOWN = 100
"""Agents in the list: those that have been silent for longest come first."""
_SILENT_S = 5.0
"""Time after which an agent is marked as silent: it reports several times a second."""
_BAD = "bold red"


class DaemonScreen(LiveScreen):
    """The daemon, asked anew with each look at the run."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,left,h", "dismiss", show=False)]

    def __init__(self, look: RunLook, source: LookSource) -> None:
        super().__init__()
        self._look = look
        self._source = source
        self._is_asking = False

    def compose(self) -> ComposeResult:
        """Lay out the facts."""
        yield Static(Text("Holdfast itself", "bold"))
        with VerticalScroll():
            yield Static(Text("asking the daemon ..."), id="daemon")
        yield Static(Text(" arrows, page down: scroll  Esc: back", "dim"))

    def on_mount(self) -> None:
        """Ask the daemon."""
        self.query_one(VerticalScroll).focus()
        self.show(self._look)

    def show(self, look: RunLook) -> None:
        """Ask the daemon again."""
        self._look = look
        if not self._is_asking:
            self._is_asking = True
            in_background(self, lambda: _ask(self._source), self._show)

    def _show(self, shown: RenderableType) -> None:
        self._is_asking = False
        self.query_one("#daemon", Static).update(shown)


def _ask(source: LookSource) -> RenderableType:
    try:
        return daemon_text(source.daemon())
    except (CommandError, OSError) as error:
        reason = str(error) if isinstance(error, CommandError) else reason_of(error)
        return Text(f"the daemon does not say how it is: {reason}", "yellow")


def daemon_text(status: DaemonStatus) -> RenderableType:
    """Return how a daemon is, safe for a terminal."""
    clean = cleaned(status)
    table = Table.grid(padding=(0, 2))
    for name, value, style in _facts(clean):
        table.add_row(Text(name, "dim"), Text(value, style))
    return Group(table, Text("\nagents, the longest silent first", "bold"), *_agents(clean))


def _facts(status: DaemonStatus) -> Iterator[tuple[str, str, str]]:
    yield "daemon", f"{status.daemon}, holdfast {status.version}, up for {duration(status.uptime_s)}", ""
    yield "leads", ", ".join(status.leader_of) or "no run: another daemon does", ""
    counts = f"{status.store_operations:,} operations, {status.store_failures:,} failed"
    store = "reachable" if status.store_up else "unreachable: training continues"
    yield "store", f"{store} · {counts}", "" if status.store_up else _BAD
    bounds = [(status.tick_p50_s, "half"), (status.tick_p99_s, "99 %")] if status.HasField("tick_p99_s") else []
    took = "".join(f" · {share} take {duration(bound_s)} or less" for bound_s, share in bounds)
    yield "ticks", f"{status.ticks:,}, {status.ticks_failed:,} failed{took}", _BAD if status.ticks_failed else ""
    refused = ", ".join(f"{count:,} of {source}" for source, count in sorted(status.refused.items()))
    yield "refused messages", f"{refused}: see the daemon's log" if refused else "none", "yellow" if refused else ""
    for one in sorted(status.detectors, key=lambda detector: (-detector.failures, -detector.seconds)):
        failed = f", {one.failures:,} failed" if one.failures else ""
        yield f"detector {one.name}", f"{one.seconds:.2f} s{failed}", _BAD if failed else ""


def _agents(status: DaemonStatus) -> Iterator[Text]:
    by_silence = sorted(status.agents, key=lambda agent: (agent.reported_unix_s, agent.node))
    for agent in by_silence[:AGENTS_SHOWN]:
        silent_s = max(0.0, status.now_unix_s - agent.reported_unix_s)
        is_silent = silent_s > _SILENT_S
        text = f"{agent.node}, run {agent.run}: reported {silent_s:.1f} s ago{', silent' if is_silent else ''}"
        yield Text(text, "yellow" if is_silent else "")
    if len(by_silence) > AGENTS_SHOWN:
        yield Text(f"and {len(by_silence) - AGENTS_SHOWN} more", "dim")
    if not by_silence:
        yield Text("none is heard of", "yellow")
