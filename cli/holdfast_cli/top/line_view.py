"""A scrollable view that draws only the lines on the screen: of ten thousand ranks, those that somebody sees."""

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip


class LineView(ScrollView, can_focus=True):
    """Lines below fixed heading lines, with a cursor that arrow keys and clicks move. A subclass draws the lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor(-1)", show=False),
        Binding("down", "cursor(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "cursor(-1000000000)", show=False),
        Binding("end", "cursor(1000000000)", show=False),
        Binding("enter", "open", show=False),
    ]
    DEFAULT_CSS = "LineView { height: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }"

    cursor: reactive[int] = reactive(0)

    class Opened(Message):
        """Somebody wants to see a rank."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    heading_lines = 0
    """Lines at the top that do not scroll."""

    @property
    def line_count(self) -> int:
        """Lines below the heading."""
        raise NotImplementedError

    def rank_at(self, line: int) -> int | None:
        """Return the rank that the cursor is on in a line, or None."""
        raise NotImplementedError

    def draw_heading(self, line: int, width: int) -> list[tuple[str, str]]:
        """Return a line of the heading as texts and their styles."""
        raise NotImplementedError

    def draw_line(self, line: int, width: int) -> list[tuple[str, str]]:
        """Return a line as texts and their styles."""
        raise NotImplementedError

    def fit(self) -> None:
        """Draw anew after a change of the lines."""
        size = Size(self.scrollable_content_region.width, self.line_count + self.heading_lines)
        if size != self.virtual_size:
            self.virtual_size = size
        self.cursor = min(self.cursor, max(0, self.line_count - 1))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen."""
        width = self.size.width
        if y < self.heading_lines:
            pieces = self.draw_heading(y, width)
        else:
            line = y - self.heading_lines + self.scroll_offset.y
            pieces = self.draw_line(line, width) if line < self.line_count else []
        segments = [Segment(text, Style.parse(style)) for text, style in pieces]
        return Strip(segments).adjust_cell_length(width, self.rich_style).apply_style(self.rich_style)

    def watch_cursor(self, _: int, line: int) -> None:
        """Keep the cursor on the screen."""
        if self.size.height > self.heading_lines:  # before the first layout there is nothing to scroll
            self.scroll_to_region(Region(0, line, 1, 1 + self.heading_lines), animate=False, force=True)
        self.refresh()

    def action_cursor(self, lines: int) -> None:
        """Move the cursor."""
        self.cursor = max(0, min(self.cursor + lines, self.line_count - 1))

    def action_page(self, pages: int) -> None:
        """Move the cursor by screens."""
        self.action_cursor(pages * max(1, self.size.height - self.heading_lines - 1))

    def action_open(self) -> None:
        """Open the rank under the cursor."""
        rank = self.rank_at(self.cursor)
        if rank is not None:
            self.post_message(self.Opened(rank))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the click; open with a double click."""
        line = event.y - self.heading_lines + self.scroll_offset.y
        if event.y >= self.heading_lines and line < self.line_count:
            self.cursor = line
            if event.chain == 2:
                self.action_open()

    def on_resize(self, _: events.Resize) -> None:
        """Fit the lines to another width."""
        self.fit()
