"""Small screens: a question, the help, and the choice of a run."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from holdfast_base.text import moment
from holdfast_cli.run_folder.record import RunRecord
from holdfast_cli.views.clean_text import one_line

HELP = (
    ("arrows, page keys", "move in the list or the map"),
    ("Enter", "open the rank, incident or file under the cursor"),
    ("Esc", "go back; among the ranks: end the search"),
    ("/", "search: a rank, 128-135, or text in node, state, phase"),
    ("o", "show odd ranks only, or all"),
    ("t", "sort by the next column"),
    ("r", "reverse the order"),
    ("m", "list, then maps: health, phase, memory, step time, GPU"),
    ("i", "incidents; in one: f its files, r its first rank"),
    ("p", "checkpoints; there: r releases a kept one (asks first)"),
    ("h", "Holdfast itself: store, ticks, detectors, agents"),
    ("c", "request a checkpoint (asks first)"),
    ("s", "stop the run after a last checkpoint (asks first)"),
    ("x", "inject a fault into the rank under the cursor (asks first)"),
    ("g, G", "in a rank: log of an older generation, of a newer one"),
    ("k", "in a rank: take its stack now"),
    ("q", "quit; the run continues"),
)


class Asked(Message):
    """Somebody wants something done to the run. ``request`` does it, once the question is answered with yes."""

    def __init__(self, question: str, request: Callable[[], str]) -> None:
        super().__init__()
        self.question, self.request = question, request


class QuestionScreen(ModalScreen[bool]):
    """Asks before something is done to the run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", show=False),
        Binding("n,escape,q", "dismiss(False)", show=False),
    ]
    DEFAULT_CSS = """
    QuestionScreen { align: center middle; }
    QuestionScreen > Vertical { width: 60; max-width: 100%; height: auto; border: heavy ansi_yellow; padding: 0 1; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question and its two answers."""
        with Vertical():
            yield Static(Text(self._question))
            yield Static(Text("\ny: yes   n or Esc: no", "bold"))


class HelpScreen(Screen[None]):
    """All keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", show=False)]

    def compose(self) -> ComposeResult:
        """Show the keys."""
        table = Table.grid(padding=(0, 2))
        for keys, what in HELP:
            table.add_row(Text(keys, "bold"), Text(what))
        with VerticalScroll():
            yield Static(Text("holdfast top: keys\n", "bold"))
            yield Static(table)
            yield Static(Text("\nEsc: back", "dim"))


class PickerScreen(Screen[str | None]):
    """Asks which run to show, the newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss(None)", show=False)]

    def __init__(self, records: Sequence[RunRecord]) -> None:
        super().__init__()
        self._records = records

    def compose(self) -> ComposeResult:
        """Show the runs."""
        yield Static(Text("which run?  Enter: show  Esc: quit", "bold"))
        yield OptionList(*(Option(_run_line(record), id=str(at)) for at, record in enumerate(self._records)))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the run under the cursor."""
        self.dismiss(self._records[event.option_index].run)


def _run_line(record: RunRecord) -> Text:
    if record.outcome:
        state, style = f"ended: {one_line(record.outcome)}", "dim"
    elif record.supervisor.is_alive():
        state, style = "running", "bold green"
    else:
        state, style = "cut short", "yellow"
    started = moment(record.created_unix_s)
    return Text.assemble((one_line(record.run), "bold"), f"  started {started}  ", (state, style))
