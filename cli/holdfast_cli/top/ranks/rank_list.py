"""The table of ranks, the odd ones first."""

from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from textual.message import Message

from holdfast_cli.top.line_view import LineView
from holdfast_cli.top.ranks.oddity import JudgedRank, JudgedRanks
from holdfast_cli.top.ranks.rank_order import RankOrder
from holdfast_cli.views.clean_text import one_line
from holdfast_cli.views.phrases import memory_text, place_text, rank_phase_text
from holdfast_daemon.control.rank_pages import Oddity

STYLES = {
    Oddity.EXITED: "bold red",
    Oddity.CULPRIT: "bold red reverse",
    Oddity.STOPPED: "bold magenta",
    Oddity.STALLED: "yellow",
    Oddity.BEHIND: "yellow",
    Oddity.SLOW: "yellow",
    Oddity.STARTING: "dim",
    Oddity.WAITING: "dim",
    Oddity.RUNNING: "",
    Oddity.ENDED: "dim",
}
_MOST_NODE, _MOST_PLACE = 20, 16
_STATE_LEAST, _STATE_MOST = 16, 34
"""Columns that the state of the uppermost rank has at least and at most; others are left out for it."""


class _Column(NamedTuple):
    name: str
    width: int
    is_right: bool = False


class RankList(LineView):
    """Ranks in the order that was asked for. The cursor stays with its rank, and on top while it is there.

    There is a line for each rank on all pages. Lines of ranks that are not on this page are empty until they come.
    """

    heading_lines = 1

    class Uncovered(Message):
        """Lines are on the screen whose ranks are not on the present page."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id)
        self._judged = JudgedRanks()
        self._shown: list[JudgedRank] = []
        self._first = 0
        """Line of the first of these."""
        self._columns: list[_Column] = []
        self._count = 0

    def show(self, judged: JudgedRanks, order: RankOrder) -> None:
        """Show ranks."""
        before = self.rank_at(self.cursor) if self.cursor else None
        self._judged = judged
        self._shown = order.arrange(judged)
        self._first = 0 if judged.is_whole else judged.skipped
        self._count = len(self._shown) if judged.is_whole else judged.matching
        self._columns = self._make_columns()
        if before is not None:
            self.set_reactive(LineView.cursor, self._line_of(before))
        self.fit()

    @property
    def shown_ranks(self) -> list[int]:
        """The ranks of the page from top to bottom."""
        return [rank.number for rank in self._shown]

    @property
    def line_count(self) -> int:
        """One line for each rank on all pages."""
        return self._count

    @property
    def first_line(self) -> int:
        """The uppermost line on the screen."""
        return int(self.scroll_offset.y)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Ask for another page if this one does not hold what is on the screen."""
        super().watch_scroll_y(old_value, new_value)
        last = min(self.first_line + self.size.height, self._count)
        if self.first_line < self._first or last > self._first + len(self._shown):
            self.post_message(self.Uncovered())

    def rank_at(self, line: int) -> int | None:
        """Return the rank in a line."""
        rank = self._in_line(line)
        return None if rank is None else rank.number

    def draw_heading(self, line: int, width: int) -> list[tuple[str, str]]:  # noqa: ARG002 - there is one
        """Return the names of the columns."""
        columns = self._fitting(width)
        names = "".join(_cell(column.name, column) for column in columns)
        return [(set_cell_size(f"  {names}state", width), "bold underline")]

    def draw_line(self, line: int, width: int) -> list[tuple[str, str]]:
        """Return the cells of one rank."""
        rank = self._in_line(line)
        if rank is None:
            return [(set_cell_size("  ...", width), "dim")]
        mark = "> " if line == self.cursor else "  "
        style = STYLES[rank.oddity] + (" reverse" if line == self.cursor and self.has_focus else "")
        view = rank.view
        cells = {
            "rank": str(rank.number),
            "node": one_line(view.node),
            "place": place_text(view),
            "step": "" if view.step < 0 else str(view.step),
            "phase": rank_phase_text(view),
            "memory": memory_text(view.memory_bytes),
        }
        texts = "".join(_cell(cells[column.name], column) for column in self._fitting(width))
        return [(set_cell_size(f"{mark}{texts}{one_line(self._judged.state_text(rank))}", width), style.strip())]

    def _line_of(self, number: int) -> int:
        lines = enumerate(self._shown, self._first)
        return next((line for line, rank in lines if rank.number == number), self.cursor)

    def _in_line(self, line: int) -> JudgedRank | None:
        at = line - self._first
        return self._shown[at] if 0 <= at < len(self._shown) else None

    def _make_columns(self) -> list[_Column]:
        """Return all columns but the state, the most important first to last as they stand."""
        last = max(self._judged.ranks, key=lambda rank: rank.number, default=None)
        node = max((cell_len(one_line(node)) for node in self._judged.nodes), default=0)
        # Places of one mesh are about as long as that of the last rank, and there are very many of them.
        place = cell_len(place_text(last.view)) if last else 0
        columns = [_Column("rank", max(4, len(str(max(self._judged.size - 1, last.number if last else 0)))), True)]
        if len(self._judged.nodes) > 1:
            columns.append(_Column("node", max(4, min(node, _MOST_NODE))))
        if place:
            columns.append(_Column("place", max(5, min(place, _MOST_PLACE))))
        columns += [_Column("step", max(6, len(str(self._judged.furthest_step))), True), _Column("phase", 16)]
        if any(rank.view.memory_bytes for rank in self._judged.ranks):
            columns.append(_Column("memory", 9, True))
        return columns

    def _fitting(self, width: int) -> list[_Column]:
        """Return the columns for which there is room; the least important are left out first."""
        columns = list(self._columns)
        state = cell_len(self._judged.state_text(self._shown[0])) if self._shown else 0
        least = max(_STATE_LEAST, min(state, _STATE_MOST))
        for name in ("memory", "place", "phase", "node"):
            if 2 + sum(column.width + 2 for column in columns) + least <= width:
                break
            columns = [column for column in columns if column.name != name]
        return columns


def _cell(text: str, column: _Column) -> str:
    if cell_len(text) > column.width:
        text = set_cell_size(text, column.width - 1) + "…"
    padding = " " * (column.width - cell_len(text))
    return (padding + text if column.is_right else text + padding) + "  "
