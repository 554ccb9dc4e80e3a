"""The ranks as a map, one character each."""

from typing import ClassVar

from rich.cells import set_cell_size
from textual import events
from textual.binding import Binding, BindingType

from holdfast_cli.top.line_view import LineView
from holdfast_cli.top.ranks.map_cells import MeshColour, cell, legend, under_cursor
from holdfast_cli.top.ranks.mesh_layout import MeshLine, axes_of, lay_out
from holdfast_cli.top.ranks.oddity import JudgedRank, JudgedRanks


class MeshView(LineView):
    """Ranks in the order of their mesh. Arrow keys move from rank to rank."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "across(-1)", show=False),
        Binding("right", "across(1)", show=False),
    ]
    heading_lines = 2

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id)
        self.colour = MeshColour.HEALTH
        self._judged = JudgedRanks()
        self._ranks: list[JudgedRank] = []
        self._lines: list[MeshLine] = []
        self._axes: list[tuple[str, int]] = []
        self._laid_out: tuple[int, ...] = ()
        self._known = 0
        self._legend = ""
        self._column = 0

    def show(self, judged: JudgedRanks, colour: MeshColour) -> None:
        """Show ranks."""
        self.colour, self._judged = colour, judged
        self._ranks = sorted(judged.ranks, key=lambda rank: rank.number)
        self._legend = legend(judged, colour)
        self.fit()

    def fit(self) -> None:
        """Lay the ranks out anew if they or the width have changed: places stay the same in a generation."""
        width = max(1, self.size.width - 2)
        # Ranks say their places one after another: as long as some are missing, they are counted.
        known = 0 if self._axes else sum(1 for rank in self._ranks if rank.view.coordinates)
        numbers = [rank.number for rank in self._ranks]
        basis = (width, self._judged.generation, len(numbers), *numbers[:1], *numbers[-1:])
        if self._laid_out != basis or known > self._known:
            self._laid_out, self._known = basis, known
            self._axes = axes_of(self._ranks)
            self._lines = lay_out(self._ranks, self._axes, width)
        super().fit()
        self.action_cursor(0)  # never on a heading

    @property
    def line_count(self) -> int:
        """Lines of cells and their headings."""
        return len(self._lines)

    def rank_at(self, line: int) -> int | None:
        """Return the rank under the cursor in a line."""
        ranks = self._lines[line].ranks if 0 <= line < len(self._lines) else []
        return self._ranks[ranks[min(self._column, len(ranks) - 1)]].number if ranks else None

    def action_cursor(self, lines: int) -> None:
        """Move the cursor to a line with ranks: past headings, or back if there is none."""
        super().action_cursor(lines)
        for step in (1, -1) if lines >= 0 else (-1, 1):
            target = self.cursor
            while 0 <= target < len(self._lines) and not self._lines[target].ranks:
                target += step
            if 0 <= target < len(self._lines):
                self.cursor = target
                return

    def action_across(self, ranks: int) -> None:
        """Move the cursor within its line, and to the next one at its end."""
        count = len(self._lines[self.cursor].ranks) if self._lines else 0
        self._column = min(self._column, max(0, count - 1)) + ranks
        if self._column < 0 or self._column >= count:
            target = self.cursor + ranks
            while 0 <= target < len(self._lines) and not self._lines[target].ranks:
                target += ranks
            if 0 <= target < len(self._lines):
                self._column = 0 if ranks > 0 else len(self._lines[target].ranks) - 1
                self.cursor = target
            else:
                self._column = max(0, min(self._column, count - 1))
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the rank under the mouse."""
        line = event.y - self.heading_lines + self.scroll_offset.y
        if event.y >= self.heading_lines and 0 <= line < len(self._lines):
            cells = self._lines[line].cells[: max(0, event.x - 2) + 1]
            self._column = max(0, sum(1 for cell in cells if cell is not None) - 1)

    def draw_heading(self, line: int, width: int) -> list[tuple[str, str]]:
        """Return what the characters mean, and below it the rank under the cursor."""
        return [(set_cell_size(f"  {self._under_cursor() if line else self._legend}", width), "" if line else "bold")]

    def _under_cursor(self) -> str:
        number = self.rank_at(self.cursor)
        found = next((rank for rank in self._ranks if rank.number == number), None)
        return "" if found is None else under_cursor(found, self._judged, self.colour)

    def draw_line(self, line: int, width: int) -> list[tuple[str, str]]:
        """Return the cells of a line."""
        drawn = self._lines[line]
        mark = "> " if line == self.cursor else "  "
        if drawn.heading:
            return [(set_cell_size(f"{mark}{drawn.heading}", width), "dim")]
        at_cursor = self._cursor_cell(drawn) if line == self.cursor else None
        pieces = [(mark, "")]
        for index in drawn.cells:
            if index is None:
                pieces.append((" ", ""))
                continue
            character, style = cell(self._ranks[index], self._judged, self.colour)
            pieces.append((character, f"{style} reverse bold".strip() if index == at_cursor else style))
        return pieces

    def _cursor_cell(self, line: MeshLine) -> int | None:
        ranks = line.ranks
        return ranks[min(self._column, len(ranks) - 1)] if ranks else None
