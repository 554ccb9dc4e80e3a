"""Shows a run while it runs: drawn in place on a terminal, as lines elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast_cli.views.clean_text import cleaned
from holdfast_cli.views.phrases import progress_line
from holdfast_cli.views.plain import HEARTBEAT_S, changes
from holdfast_cli.views.run_view import Surroundings, render
from holdfast_proto.v1.control_pb2 import RunStatus

REDRAW_S = 0.3


class Display(Protocol):
    """Shows each new status of a run."""

    def __enter__(self) -> "Display":
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and leave the last view on the screen."""

    def update(self, status: RunStatus, surroundings: Surroundings) -> None:
        """Show ``status``."""

    def say(self, lines: Sequence[str]) -> None:
        """Print lines that stay, such as the output of a rank."""


class LiveDisplay:
    """Draws the view in place, at most every REDRAW_S: the ranks need the processor more."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._pending: RenderableType | None = None
        self._drawn_s = float("-inf")

    def __enter__(self) -> "LiveDisplay":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pending is not None:
            self._live.update(self._pending)
        self._live.stop()

    def update(self, status: RunStatus, surroundings: Surroundings) -> None:
        """Draw ``status``, now or with the next one."""
        self._pending = render(cleaned(status), surroundings)
        if time.monotonic() - self._drawn_s >= REDRAW_S:
            self._live.update(self._pending, refresh=True)
            self._drawn_s = time.monotonic()

    def say(self, lines: Sequence[str]) -> None:
        """Print lines above the view. Colours stay; what would move the cursor is taken out."""
        if lines:
            text = Text("\n").join(Text.from_ansi(line) for line in lines)
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)


class LineDisplay:
    """Prints what has changed, and a sign of life every HEARTBEAT_S."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._previous: RunStatus | None = None
        self._title = ""
        self._notes: tuple[str, ...] = ()
        self._spoke_unix_s = 0.0

    def __enter__(self) -> "LineDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, status: RunStatus, surroundings: Surroundings) -> None:
        """Print what is new."""
        status = cleaned(status)
        lines = list(self._news(surroundings))
        lines += changes(self._previous, status, surroundings.total_steps)
        if not lines and status.now_unix_s - self._spoke_unix_s >= HEARTBEAT_S:
            lines.append(progress_line(status, surroundings.total_steps))
        if lines:
            self._spoke_unix_s = status.now_unix_s
        self.say(lines)
        self._previous = status

    def say(self, lines: Sequence[str]) -> None:
        """Print lines as they are."""
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _news(self, surroundings: Surroundings) -> list[str]:
        lines = [surroundings.title] if surroundings.title != self._title else []
        lines += [note for note in surroundings.notes if note not in self._notes]
        self._title, self._notes = surroundings.title, tuple(surroundings.notes)
        return lines


def display_for(console: Console) -> Display:
    """Return the display that suits ``console``."""
    return LiveDisplay(console) if console.is_terminal else LineDisplay(console)
