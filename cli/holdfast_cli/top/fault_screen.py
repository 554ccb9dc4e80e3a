"""Asks which fault to inject into a rank, and with which settings."""

import math
from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from holdfast_cli.views.clean_text import one_line
from holdfast_hooks.faults import CATALOGUE, Fault, check
from holdfast_hooks.phases import Phase
from holdfast_proto.limits import LARGEST_COUNT

_EXAMPLES: Mapping[str, str] = {"duration_s": "duration=30", "factor": "factor=3", "seed": "seed=1"}
_ALWAYS = ("step=500", "phase=data")


class FaultWanted(Message):
    """Somebody wants to inject a fault into a rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank


class FaultScreen(Screen[Fault | None]):
    """The kinds of faults, and a line for the settings of the chosen one. It ends with the fault, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", show=False)]
    DEFAULT_CSS = "#fault-settings { height: 1; border: none; padding: 0; }"

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        self._kinds = list(CATALOGUE)
        self._kind = self._kinds[0]

    def compose(self) -> ComposeResult:
        """Show the kinds."""
        yield Static(Text(f"inject a fault into rank {self._rank}: which?", "bold"))
        yield OptionList(*map(_option, self._kinds), id="faults")
        yield Static(id="fault-says")
        yield Input(id="fault-settings", compact=True)
        yield Static(Text(" Enter: choose, then settings, then confirm  Esc: back", "dim"))

    def on_mount(self) -> None:
        """Begin with the kinds."""
        self.query_one("#fault-settings").display = False
        self.query_one("#faults").focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Ask for the settings of a kind."""
        self._kind = self._kinds[event.option_index]
        takes = [_EXAMPLES[name] for name in CATALOGUE[self._kind].takes]
        self._say(f"settings of {self._kind}, each may be left out: {' '.join([*takes, *_ALWAYS])}", "")
        entry = self.query_one("#fault-settings", Input)
        entry.value, entry.display = "", True
        entry.placeholder = "Enter: without settings"
        entry.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """End with the fault, unless a setting is wrong."""
        try:
            fault = fault_of(self._kind, self._rank, event.value)
        except ValueError as error:
            self._say(one_line(str(error)), "bold red")
        else:
            self.dismiss(fault)

    def action_back(self) -> None:
        """Go back to the kinds, or out."""
        entry = self.query_one("#fault-settings", Input)
        if not entry.display:
            self.dismiss(None)
            return
        entry.display = False
        self._say("", "")
        self.query_one("#faults").focus()

    def _say(self, text: str, style: str) -> None:
        self.query_one("#fault-says", Static).update(Text(text, style))


def fault_of(kind: str, rank: int, settings: str) -> Fault:
    """Return the fault that ``settings`` describe, such as ``duration=30 step=500``.

    Raises ValueError with one line that names the setting that is wrong.
    """
    given: dict[str, str] = {}
    for word in settings.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if not equals or name not in ("duration", "factor", "seed", "step", "phase"):
            raise ValueError(f"{word[:40]}: use duration=, factor=, seed=, step= or phase=")
        given[name] = value
    fault = Fault(
        kind,
        rank=rank,
        step=_whole(given, "step", -1),
        phase=_phase(given["phase"]) if "phase" in given else None,
        duration_s=_number(given, "duration"),
        factor=_number(given, "factor"),
        seed=_whole(given, "seed", 0),
    )
    check(fault)
    return fault


def question_about(fault: Fault, run: str) -> str:
    """Return the question before a fault: what happens to which rank, and which verdict should follow."""
    kind = CATALOGUE[fault.kind]
    when = f" in step {fault.step}" if fault.step >= 0 else " now"
    return (
        f"Inject {fault.kind} into rank {fault.rank} of run {one_line(run)}{when}? "
        f"What happens to the rank: {kind.what}. Verdict to expect: {kind.verdict}."
    )


def _option(name: str) -> Option:
    return Option(Text.assemble((f"{name:<20}", "bold"), CATALOGUE[name].what, no_wrap=True))


def _phase(word: str) -> Phase:
    try:
        return Phase[word.upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(phase.name.lower() for phase in Phase if phase is not Phase.INIT)
        raise ValueError(f"phase={word[:40]}: use {known}") from None


def _whole(given: Mapping[str, str], name: str, default: int) -> int:
    if name not in given:
        return default
    text = given[name]
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) > LARGEST_COUNT:
        raise ValueError(f"{name}={text[:40]}: use a whole number, 0 or more")
    return int(text)


def _number(given: Mapping[str, str], name: str) -> float:
    try:
        value = float(given.get(name, "0"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name}={given[name][:40]}: use a number")
    return value
