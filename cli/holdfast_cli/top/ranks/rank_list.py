"""The table of ranks, the odd ones first."""

from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from holdfast_cli.top.line_view import LineView
from holdfast_cli.top.ranks.oddity import JudgedRank, JudgedRanks, Oddity
from holdfast_cli.top.ranks.rank_order import RankOrder
from holdfast_cli.views.clean_text import one_line
from holdfast_cli.views.phrases import memory_text, place_text, rank_phase_text

STYLES = {
    Oddity.EXITED: "bold red",
    Oddity.CULPRIT: "bold red reverse",
    Oddity.STOPPED: "bold magenta",
    Oddity.STALLED: "yellow",
    Oddity.BEHIND: "yellow",
    Oddity.SLOW: "yellow",
    Oddity.STARTING: "dim",
    Oddity.WAITING: "dim",
    Oddity.NORMAL: "",
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
    """Ranks in the order that was asked for. The cursor stays with its rank, and on top while it is there."""

    heading_lines = 1

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id)
        self._judged = JudgedRanks()
        self._shown: list[JudgedRank] = []
        self._columns: list[_Column] = []

    def show(self, judged: JudgedRanks, order: RankOrder) -> None:
        """Show ranks."""
        before = self.rank_at(self.cursor) if self.cursor else None
        self._judged = judged
        self._shown = order.arrange(judged)
        self._columns = self._make_columns()
        if before is not None:
            self.set_reactive(LineView.cursor, self._line_of(before))
        self.fit()

    @property
    def shown_ranks(self) -> list[int]:
        """The ranks from top to bottom."""
        return [rank.number for rank in self._shown]

    @property
    def line_count(self) -> int:
        """One line for each rank."""
        return len(self._shown)

    def rank_at(self, line: int) -> int | None:
        """Return the rank in a line."""
        return self._shown[line].number if 0 <= line < len(self._shown) else None

    def draw_heading(self, line: int, width: int) -> list[tuple[str, str]]:  # noqa: ARG002 - there is one
        """Return the names of the columns."""
        columns = self._fitting(width)
        names = "".join(_cell(column.name, column) for column in columns)
        return [(set_cell_size(f"  {names}state", width), "bold underline")]

    def draw_line(self, line: int, width: int) -> list[tuple[str, str]]:
        """Return the cells of one rank."""
        rank = self._shown[line]
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
        return next((line for line, rank in enumerate(self._shown) if rank.number == number), self.cursor)

    def _make_columns(self) -> list[_Column]:
        """Return all columns but the state, the most important first to last as they stand."""
        last = self._judged.ranks[-1] if self._judged.ranks else None
        node = max((cell_len(one_line(node)) for node in self._judged.nodes), default=0)
        # Places of one mesh are about as long as that of the last rank, and there are very many of them.
        place = cell_len(place_text(last.view)) if last else 0
        columns = [_Column("rank", max(4, len(str(last.number if last else 0))), True)]
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
