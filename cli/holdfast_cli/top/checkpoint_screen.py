"""The checkpoints of a run: those of a folder that this machine sees, else the steps that nodes report."""

import time
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format import keeping
from holdfast_checkpoint.store.overview import FoundCheckpoint, FoundHistory, histories_at
from holdfast_cli.checkpoints.tables import bytes_text
from holdfast_cli.errors import CommandError
from holdfast_cli.top.background import LiveScreen, in_background
from holdfast_cli.top.dialogs import Asked
from holdfast_cli.top.run_looks import RunLook
from holdfast_cli.views.clean_text import one_line


@dataclass(frozen=True)
class CheckpointLine:
    """One line of the list. ``checkpoint``: None in the heading of a history, and of a step that is only reported."""

    text: Text
    checkpoint: FoundCheckpoint | None = None


class CheckpointScreen(LiveScreen):
    """All checkpoints, by history. It only reads, until somebody releases one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,left,p", "dismiss", show=False),
        Binding("r", "release", show=False),
        Binding("u", "update", show=False),
    ]

    def __init__(self, look: RunLook) -> None:
        super().__init__()
        self._look = look
        self._rows: list[CheckpointLine] = []
        self._read_steps: list[int] | None = None
        """Steps that nodes reported when the folder was read; None: it must be read."""
        self._is_reading = False

    def compose(self) -> ComposeResult:
        """Lay out the list."""
        yield Static(id="checkpoints-title")
        yield Static(id="checkpoints-note")
        yield OptionList(id="checkpoints")
        yield Static(Text(" Esc:back  c:take one now  r:release a kept one  u:read the folder again", "dim"))

    def on_mount(self) -> None:
        """Read the folder."""
        self.query_one("#checkpoints").focus()
        self.show(self._look)

    def show(self, look: RunLook) -> None:
        """Read the folder again if a checkpoint has come or gone since."""
        self._look = look
        if list(look.status.checkpoints) != self._read_steps and not self._is_reading:
            self._is_reading, self._read_steps = True, list(look.status.checkpoints)
            in_background(self, lambda: read_checkpoints(look), self._show)

    def action_update(self) -> None:
        """Read the folder again."""
        self._read_steps = None
        self.show(self._look)

    def action_release(self) -> None:
        """Ask, and release the checkpoint under the cursor."""
        at = self.query_one("#checkpoints", OptionList).highlighted
        chosen = None if at is None else self._rows[at].checkpoint
        if chosen is None or not chosen.kept:
            self.notify("this checkpoint is not kept: move to one that is", severity="warning", markup=False)
            return

        def release() -> str:
            try:
                keeping.release(chosen.directory)
            except CheckpointError as error:
                raise CommandError(str(error)) from None
            self._read_steps = None
            return chosen.release_line

        question = f"Release the checkpoint of step {chosen.step}? It is kept for: {one_line(chosen.kept)}."
        self.app.post_message(Asked(f"{question} A later checkpoint may then delete it.", release))

    def _show(self, found: tuple[list[CheckpointLine], str]) -> None:
        self._is_reading = False
        self._rows, note = found
        place = one_line(location_of(self._look)) or "no place is named"
        found_here = sum(row.checkpoint is not None for row in self._rows)
        count = found_here or len(self._rows)  # steps that are reported have no checkpoint
        self.query_one("#checkpoints-title", Static).update(Text(f"checkpoints: {count}  {place}", "bold"))
        pane = self.query_one("#checkpoints-note", Static)
        pane.update(Text(note, "yellow"))
        pane.display = bool(note)
        options = self.query_one("#checkpoints", OptionList)
        at = options.highlighted
        options.clear_options()
        options.add_options([Option(row.text) for row in self._rows])
        if self._rows:
            options.highlighted = min(at if at is not None else len(self._rows) - 1, len(self._rows) - 1)


def location_of(look: RunLook) -> str:
    """Return the folder or the URL of a run's checkpoints; "" if none is known."""
    record = look.target.record
    return look.status.settings.checkpoint_directory or (record.checkpoint_directory if record is not None else "")


def read_checkpoints(look: RunLook) -> tuple[list[CheckpointLine], str]:
    """Return the lines of the list, and why they are not those of the folder, or "". Reads files."""
    at_url = "the checkpoints are in an object store: `holdfast checkpoint list` reads it"
    histories, note = histories_at(location_of(look), at_url=at_url)
    if not note:
        return [row for history in histories for row in _history(history)], ""
    steps = [CheckpointLine(Text(f"step {step}  reported by nodes")) for step in look.status.checkpoints]
    return steps, f"{one_line(note)}: the steps are those that nodes report" if steps else one_line(note)


def _history(history: FoundHistory) -> list[CheckpointLine]:
    record = history.record
    origin = "from the seed"
    if record is not None and record.parent:
        origin = f"continues history {record.parent} after step {record.parent_step}"
    heading = CheckpointLine(Text(f"history {history.number}, {origin}", "bold"))
    return [heading, *(CheckpointLine(_line(one), one) for one in history.checkpoints)]


def _line(found: FoundCheckpoint) -> Text:
    text = Text(f"  step {found.step:<9}")
    manifest = found.manifest
    if manifest is not None:
        committed = time.strftime("%m-%d %H:%M", time.localtime(manifest.committed_unix_s))
        form = f"on step {manifest.bases[-1]}" if manifest.bases else "full"
        text.append(f"{committed}  {bytes_text(manifest.stored_bytes):>9}  {form}")
    marks = ["proven"] if found.is_proven else []
    marks += ["left: no start uses it"] if found.is_left else []
    marks += ["stale"] if manifest is not None and manifest.stale else []
    if marks:
        text.append(f"  {', '.join(marks)}", "dim")
    if (mark := found.verification) is not None:
        when = time.strftime("%m-%d %H:%M", time.localtime(mark.verified_unix_s))
        text.append(f"  {'damaged, seen' if mark.damages else 'verified'} {when}", "bold red" if mark.damages else "")
    if found.is_suspect:
        text.append("  suspect: it may hold the bad state", "bold red")
    if found.kept:
        text.append(f"  kept: {one_line(found.kept)}", "bold")
    if found.problem:
        text.append(f"  unusable: {one_line(found.problem)}", "bold red")
    return text
