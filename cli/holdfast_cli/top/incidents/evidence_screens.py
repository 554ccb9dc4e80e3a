"""The files of an incident's evidence on this machine, and the text of one."""

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from holdfast_cli.checkpoints.tables import bytes_text
from holdfast_cli.top.background import LiveScreen, in_background
from holdfast_cli.views.clean_text import one_line, some_lines
from holdfast_daemon.incidents.evidence_files import evidence_files, open_evidence

MOST_BYTES = 128 * 1024
"""Bytes that are shown of one file: its beginning."""
_NAME = 48
"""Columns of a name, before its size."""


class EvidenceScreen(LiveScreen):
    """The files of one incident."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,left,f", "dismiss", show=False)]

    def __init__(self, incident: str, folder: Path) -> None:
        super().__init__()
        self._incident = incident
        self._folder = folder
        self._names: list[str] = []

    def compose(self) -> ComposeResult:
        """Lay out the list."""
        yield Static(Text("reading the folder ..."), id="evidence-title")
        yield OptionList(id="evidence")
        yield Static(Text(" Enter: read it  Esc: back", "dim"))

    def on_mount(self) -> None:
        """Look into the folder."""
        in_background(self, lambda: evidence_files(self._folder), self._show)

    def _show(self, files: list[tuple[str, int]]) -> None:
        title = f"files of {one_line(self._incident)}: {len(files)}"
        if not files:
            title = f"no files of {one_line(self._incident)} on this machine: `holdfast incidents` works where they are"
        self.query_one("#evidence-title", Static).update(Text(title, "bold"))
        self._names = [name for name, _ in files]
        options = self.query_one("#evidence", OptionList)
        options.add_options([Option(Text(f"{one_line(name):<{_NAME}}  {bytes_text(size)}")) for name, size in files])
        options.highlighted = 0 if files else None
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open a file."""
        self.app.push_screen(EvidenceTextScreen(self._folder, self._names[event.option_index]))


class EvidenceTextScreen(LiveScreen):
    """One file of evidence."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,left", "dismiss", show=False)]

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__()
        self._folder, self._file = folder, name

    def compose(self) -> ComposeResult:
        """Lay out name and text."""
        yield Static(Text(one_line(self._file), "bold"))
        with VerticalScroll():
            yield Static(id="evidence-text")
        yield Static(Text(" arrows, page down, end: scroll  Esc: back", "dim"))

    def on_mount(self) -> None:
        """Read the file."""
        self.query_one(VerticalScroll).focus()
        in_background(self, lambda: evidence_text(self._folder, self._file), self._show)

    def _show(self, text: Text) -> None:
        self.query_one("#evidence-text", Static).update(text)


def evidence_text(folder: Path, name: str) -> Text:
    """Return the beginning of a text file, safe for a terminal, or why it is not shown. Reads the file."""
    try:
        with open_evidence(folder, name) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        return Text(f"the file cannot be read: {one_line(error.strerror or str(error))}", "yellow")
    if b"\0" in data:
        return Text("this is no text: copy the file, or use `holdfast incidents export`", "yellow")
    if not data:
        return Text("the file is empty", "dim")
    text = Text(some_lines(data[:MOST_BYTES].decode(errors="replace")))
    if len(data) > MOST_BYTES:
        text.append(f"\n\nonly the first {MOST_BYTES // 1024} KiB are shown", "yellow")
    return text
