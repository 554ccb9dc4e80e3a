"""The ranks as a map, one character each: by health, phase or memory. The characters alone say it, without colours."""

from enum import Enum
from operator import itemgetter
from typing import ClassVar

from rich.cells import set_cell_size
from textual import events
from textual.binding import Binding, BindingType

from holdfast_cli.top.line_view import LineView
from holdfast_cli.top.mesh_layout import MeshLine, axes_of, lay_out
from holdfast_cli.top.oddity import JudgedRank, JudgedRanks, Oddity
from holdfast_cli.top.rank_table import STYLES
from holdfast_daemon.core.texts.incident_lines import enum_phrase
from holdfast_proto.v1 import common_pb2
from holdfast_proto.v1.common_pb2 import (
    PHASE_CHECKPOINT,
    PHASE_DATA,
    PHASE_EVAL,
    PHASE_FORWARD_BACKWARD,
    PHASE_IDLE,
    PHASE_INIT,
    PHASE_OPTIMIZER,
)


class MeshColour(Enum):
    """What a cell shows of its rank."""

    HEALTH = "health"
    PHASE = "phase"
    MEMORY = "memory"


_HEALTH = {
    Oddity.EXITED: "x",
    Oddity.CULPRIT: "!",
    Oddity.STOPPED: "T",
    Oddity.STALLED: "~",
    Oddity.BEHIND: "<",
    Oddity.SLOW: "s",
    Oddity.STARTING: "+",
    Oddity.NORMAL: ".",
    Oddity.ENDED: "-",
}
_HEALTH_WORDS = {Oddity.NORMAL: "running", Oddity.SLOW: "slow"}
_PHASES = {
    PHASE_INIT: ("i", "cyan"),
    PHASE_DATA: ("d", "yellow"),
    PHASE_FORWARD_BACKWARD: ("f", ""),
    PHASE_OPTIMIZER: ("o", "green"),
    PHASE_CHECKPOINT: ("c", "blue"),
    PHASE_EVAL: ("e", "magenta"),
    PHASE_IDLE: ("-", "dim"),
}
_FULL, _TIGHT = 0.95, 0.8
"""Shares of a rank's memory from which it is marked."""


class MeshView(LineView):
    """All ranks in the order of their mesh. Arrow keys move from rank to rank."""

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
        self._ranks = sorted(judged.ranks, key=itemgetter(1))
        self._legend = self._make_legend()
        self.fit()

    def fit(self) -> None:
        """Lay the ranks out anew if they or the width have changed: places stay the same in a generation."""
        width = max(1, self.size.width - 2)
        # Ranks say their places one after another: as long as some are missing, they are counted.
        known = 0 if self._axes else sum(1 for rank in self._ranks if rank.view.coordinates)
        basis = (width, len(self._ranks), self._judged.generation)
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
        return "" if found is None else f"rank {found.number}: {self._judged.state_text(found)}"

    def draw_line(self, line: int, width: int) -> list[tuple[str, str]]:
        """Return the cells of a line."""
        drawn = self._lines[line]
        mark = "> " if line == self.cursor else "  "
        if drawn.heading:
            return [(set_cell_size(f"{mark}{drawn.heading}", width), "dim")]
        under_cursor = self._cursor_cell(drawn) if line == self.cursor else None
        pieces = [(mark, "")]
        for cell in drawn.cells:
            if cell is None:
                pieces.append((" ", ""))
                continue
            character, style = self._cell(self._ranks[cell])
            pieces.append((character, f"{style} reverse bold".strip() if cell == under_cursor else style))
        return pieces

    def _cursor_cell(self, line: MeshLine) -> int | None:
        ranks = line.ranks
        return ranks[min(self._column, len(ranks) - 1)] if ranks else None

    def _cell(self, rank: JudgedRank) -> tuple[str, str]:
        if self.colour is MeshColour.HEALTH:
            return _HEALTH[rank.oddity], STYLES[rank.oddity]
        if self.colour is MeshColour.PHASE:
            return _PHASES.get(rank.view.phase, ("?", "dim"))
        used, limit = rank.view.memory_bytes, rank.view.memory_limit_bytes
        if not (used and limit):
            return "?", "dim"
        share = used / limit
        return str(min(9, int(share * 10))), "bold red" if share >= _FULL else "yellow" if share >= _TIGHT else ""

    def _make_legend(self) -> str:
        if self.colour is MeshColour.HEALTH:
            counts, present = self._judged.counts, self._judged.present
            words = [f"{_HEALTH[kind]} {_HEALTH_WORDS.get(kind, kind.name.lower())} {counts[kind]}" for kind in present]
            return "health: " + "  ".join(words)
        if self.colour is MeshColour.PHASE:
            words = [f"{letter} {enum_phrase(common_pb2.Phase, phase)}" for phase, (letter, _) in _PHASES.items()]
            return f"phase: {'  '.join(words)}  ? not known"
        return "memory: 0 to 9 is the tenth of its memory that a rank has in use  ? not known"
