"""The list of a run's incidents."""

import time
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from holdfast_cli.top.background import LiveScreen
from holdfast_cli.top.incidents.story_screen import StoryScreen
from holdfast_cli.top.run_looks import RunLook
from holdfast_cli.views.clean_text import cleaned, one_line
from holdfast_core.texts.incident_lines import incident_line
from holdfast_proto.v1.store_pb2 import Incident


class IncidentsScreen(LiveScreen):
    """All incidents, the newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,i", "dismiss", show=False)]

    def __init__(self, look: RunLook) -> None:
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

    def show(self, look: RunLook) -> None:
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


def _incident_text(incident: Incident) -> Text:
    detected = time.strftime("%m-%d %H:%M:%S", time.localtime(incident.detected_unix_s))
    return Text.assemble(
        (f"{one_line(incident.id)}  {detected}\n", "bold"), f"  {one_line(incident_line(cleaned(incident)))}"
    )
