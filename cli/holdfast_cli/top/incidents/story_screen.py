"""The whole story of one incident: facts, who waits for whom, calls, stacks, what was done, files."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from holdfast_cli.incidents.folder_files import IncidentFiles, read_files
from holdfast_cli.incidents.story import incident_story
from holdfast_cli.top.background import LiveScreen, in_background
from holdfast_cli.top.incidents.evidence_screens import EvidenceScreen
from holdfast_cli.top.run_looks import RunLook
from holdfast_cli.views.clean_text import cleaned, one_line
from holdfast_proto import run_files
from holdfast_proto.v1.store_pb2 import Incident

_NO_FILES = IncidentFiles((), (), (), ())


class RankWanted(Message):
    """Somebody wants to see a rank, with its log of a generation."""

    def __init__(self, rank: int, generation: int) -> None:
        super().__init__()
        self.rank, self.generation = rank, generation


class StoryScreen(LiveScreen):
    """One incident: facts, who waits for whom, calls, stacks, what was done, files."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,left", "dismiss", show=False),
        Binding("f", "files", show=False),
        Binding("r", "rank", show=False),
    ]

    def __init__(self, incident: Incident, look: RunLook) -> None:
        super().__init__()
        self._incident = incident
        self._look = look
        self._files = _NO_FILES

    def compose(self) -> ComposeResult:
        """Show the story."""
        with VerticalScroll():
            yield Static(id="story")
        yield Static(Text(" Esc: back  f: files of evidence  r: first named rank, with its log of then", "dim"))

    def on_mount(self) -> None:
        """Show what the daemon knows, and then what the files on this machine add."""
        self._draw()
        self.query_one(VerticalScroll).focus()
        folder = self._folder
        if folder is not None:
            in_background(self, lambda: _read(folder), self._add_files)

    @property
    def _folder(self) -> Path | None:
        """The folder of the evidence; None if the run's folder is not known here."""
        record = self._look.target.record
        if record is None:
            return None
        return run_files.incidents(Path(record.directory), self._incident.run or record.run) / self._incident.id

    def action_files(self) -> None:
        """Show the files of evidence."""
        if self._folder is None:
            self.notify("no files here: `holdfast run` has not started this run on this machine", markup=False)
        else:
            self.app.push_screen(EvidenceScreen(self._incident.id, self._folder))

    def action_rank(self) -> None:
        """Open the first rank that the incident names, with the log of the incident's generation."""
        culprits = self._incident.verdict.culprits
        if culprits:
            self.app.post_message(RankWanted(culprits[0], self._incident.generation))
        else:
            self.notify("this incident names no rank", markup=False)

    def show(self, look: RunLook) -> None:
        """Show a newer state of the same incident."""
        self._look = look
        newest = next((one for one in look.incidents if one.id == self._incident.id), self._incident)
        if newest != self._incident:
            self._incident = newest
            self._draw()

    def _add_files(self, files: IncidentFiles) -> None:
        self._files = files
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
