"""The incidents of a run, and the whole story of one."""

import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from holdfast_cli.incidents.files import IncidentFiles, read_files
from holdfast_cli.incidents.story import incident_story
from holdfast_cli.top.background import in_background
from holdfast_cli.top.run_source import Look
from holdfast_cli.views.clean_text import cleaned, one_line
from holdfast_daemon.core.texts.incident_lines import incident_line
from holdfast_proto import run_files
from holdfast_proto.v1.store_pb2 import Incident

_NO_FILES = IncidentFiles((), (), (), ())


class IncidentsScreen(Screen[None]):
    """All incidents, the newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,i", "dismiss", show=False)]

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._shown: list[Incident] = []

    def compose(self) -> ComposeResult:
        """Show the list."""
        yield Static(id="incidents-title")
        yield OptionList(id="incidents")
        yield Static(Text(" Enter: the whole story  Esc: back", "dim"))

    def on_mount(self) -> None:
        """Show what is known."""
        self.show(self._look)

    def show(self, look: Look) -> None:
        """Show the incidents of a newer state of the run."""
        self._look = look
        incidents = sorted(look.incidents, key=lambda incident: -incident.detected_unix_s)
        count = len(incidents)
        title = f"incidents of {one_line(look.status.run)}: {count}" if count else "no incidents"
        self.query_one("#incidents-title", Static).update(Text(title, "bold"))
        if incidents == self._shown:
            return
        self._shown = incidents
        options = self.query_one("#incidents", OptionList)
        at = options.highlighted
        options.clear_options()
        options.add_options([Option(_incident_text(incident)) for incident in incidents])
        if incidents:
            options.highlighted = min(at or 0, count - 1)
        options.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open an incident."""
        self.app.push_screen(StoryScreen(self._shown[event.option_index], self._look))


class StoryScreen(Screen[None]):
    """One incident: facts, who waits for whom, calls, stacks, what was done, files."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,left", "dismiss", show=False)]

    def __init__(self, incident: Incident, look: Look) -> None:
        super().__init__()
        self._incident = incident
        self._look = look
        self._files = _NO_FILES

    def compose(self) -> ComposeResult:
        """Show the story."""
        with VerticalScroll():
            yield Static(id="story")
        yield Static(Text(" Esc: back", "dim"))

    def on_mount(self) -> None:
        """Show what the daemon knows, and then what the files on this machine add."""
        self._draw()
        record = self._look.target.record
        if record is not None:
            run = self._incident.run or record.run
            folder = run_files.incidents(Path(record.directory), run) / self._incident.id
            in_background(self.app, lambda: _read(folder), self._add_files)

    def show(self, look: Look) -> None:
        """Show a newer state of the same incident."""
        newest = next((one for one in look.incidents if one.id == self._incident.id), self._incident)
        if newest != self._incident:
            self._incident = newest
            self._draw()

    def _add_files(self, files: IncidentFiles) -> None:
        self._files = files
        if self.is_attached:
            self._draw()

    def _draw(self) -> None:
        self.query_one("#story", Static).update(story_text(self._incident, self._files))


def story_text(incident: Incident, files: IncidentFiles) -> RenderableType:
    """Return the story of an incident, safe for a terminal."""
    clean = IncidentFiles(
        names=tuple(one_line(name) for name in files.names),
        black_boxes=tuple(
            replace(box, groups=tuple((one_line(name), newest, done) for name, newest, done in box.groups))
            for box in files.black_boxes
        ),
        stacks=tuple(map(cleaned, files.stacks)),
        pending=tuple(map(cleaned, files.pending)),
    )
    return incident_story(cleaned(incident), clean)


def _read(folder: Path) -> IncidentFiles:
    try:
        return read_files(folder)
    except (OSError, KeyError, TypeError, ValueError):  # files of another version, or damaged ones
        return _NO_FILES


def _incident_text(incident: Incident) -> Text:
    detected = time.strftime("%m-%d %H:%M:%S", time.localtime(incident.detected_unix_s))
    return Text.assemble(
        (f"{one_line(incident.id)}  {detected}\n", "bold"), f"  {one_line(incident_line(cleaned(incident)))}"
    )
