"""The main screen: what is wrong first, then numbers and curves, then the ranks as a list or as a map."""

from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input, Static

from holdfast_cli.top.background import LiveScreen
from holdfast_cli.top.incidents.attention_panel import attention
from holdfast_cli.top.poller import Lost
from holdfast_cli.top.ranks.map_cells import MeshColour, known_colours
from holdfast_cli.top.ranks.mesh_view import MeshView
from holdfast_cli.top.ranks.oddity import JudgedRanks
from holdfast_cli.top.ranks.rank_list import RankList
from holdfast_cli.top.ranks.rank_order import RankOrder
from holdfast_cli.top.run_looks import RunLook
from holdfast_cli.top.seen_numbers import SeenNumbers
from holdfast_cli.top.summary_pane import (
    CURVES,
    attention_text,
    connection_text,
    curves_text,
    header_text,
    numbers_text,
    rank_counts,
)
from holdfast_cli.views.clean_text import one_line
from holdfast_core.texts.incident_lines import number_of
from holdfast_daemon.control.rank_pages import MOST_LISTED, RankSearch
from holdfast_proto.v1.control_pb2 import RANK_SORT_RANK, GetStatusRequest

_ALL_HINTS = (
    " ?:help /:search o:odd t:sort m:map i:incidents p:checkpoints h:holdfast c:checkpoint x:fault s:stop q:quit",
    " ?:help /:search o:odd m:map i:incidents p:checkpoints h:holdfast s:stop q:quit",
    " ?:help /:search o:odd m:map q:quit",
)
"""Hints for terminals of different widths, the longest first."""
_NARROW, _LOW = 60, 24
"""Columns and lines of a terminal in which the numbers leave room for the ranks."""
_CURVES_WHEN_LOW = 2
_LEAST_HEIGHT = 24
"""Lines for which ranks are asked for before the first layout."""


class PageWanted(Message):
    """The screen needs another page of the ranks than looks bring."""

    def __init__(self, page: GetStatusRequest) -> None:
        super().__init__()
        self.page = page


class RunScreen(LiveScreen):
    """One run, live."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", show=False),
        Binding("escape", "clear_filter", show=False),
        Binding("o", "only_odd", show=False),
        Binding("t", "sort", show=False),
        Binding("r", "reverse", show=False),
        Binding("m", "map", show=False),
    ]
    DEFAULT_CSS = """
    RunScreen { layout: vertical; }
    RunScreen Static { height: auto; }
    #attention { border: heavy ansi_red; padding: 0 1; max-height: 9; }
    #attention.noted { border: round ansi_yellow; }
    #numbers.short { text-wrap: nowrap; text-overflow: ellipsis; }
    #filter { height: 1; border: none; padding: 0; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._look: RunLook | None = None
        self._order = RankOrder()
        self._colour: MeshColour | None = None
        self._seen = SeenNumbers()

    def compose(self) -> ComposeResult:
        """Lay out the panes, from the loudest to the largest."""
        yield Static(Text("looking for the run ..."), id="header")
        yield Static(id="connection")
        yield Static(id="attention")
        yield Static(id="numbers")
        yield Static(id="curves")
        yield Static(id="counts")
        yield RankList(id="table")
        yield MeshView(id="mesh")
        yield Input(
            placeholder="rank, range such as 128-135, or text in node, state, phase, place", id="filter", compact=True
        )
        yield Static(id="hints")

    @property
    def chosen_rank(self) -> int | None:
        """The rank under the cursor."""
        view = self.query_one(RankList) if self._colour is None else self.query_one(MeshView)
        return view.rank_at(view.cursor)

    def on_mount(self) -> None:
        """Hide what has nothing to show yet."""
        for name in ("#connection", "#attention", "#mesh", "#filter"):
            self.query_one(name).display = False
        self.query_one(RankList).focus()

    def on_resize(self) -> None:
        """Fit what depends on the width."""
        self._show(self.query_one("#hints", Static), Text(self._hints(), "dim", no_wrap=True))
        self._want_page()
        self._draw_summary()

    def show(self, look: RunLook) -> None:
        """Show a newer state of the run."""
        self._look = look
        self._seen.see(look.status)
        self._show(self.query_one("#connection", Static), connection_text(None))
        self._draw_summary()
        self._draw_ranks()

    def show_lost(self, lost: Lost) -> None:
        """Show that the daemon does not answer."""
        if self._look is None:
            self.query_one("#header", Static).update(Text("waiting for the run"))
        self._show(self.query_one("#connection", Static), connection_text(lost))

    def _draw_summary(self) -> None:
        if self._look is None:
            return
        status = self._look.status
        wrong = attention(status)
        is_bad = wrong is not None and wrong.is_bad
        self.query_one("#header", Static).update(header_text(self._look, is_bad=is_bad))
        pane = self.query_one("#attention", Static)
        pane.set_class(not is_bad, "noted")
        self._show(pane, attention_text(wrong, is_short=self.size.width < _NARROW))
        is_short = self.size.width < _NARROW or (is_bad and self.size.height <= _LOW)
        numbers = self.query_one("#numbers", Static)
        numbers.set_class(is_short, "short")
        self._show(numbers, numbers_text(self._look))
        most = _CURVES_WHEN_LOW if is_bad and self.size.height <= _LOW else len(CURVES)
        self._show(self.query_one("#curves", Static), curves_text(self._seen, self.size.width, most=most))

    def _draw_ranks(self) -> None:
        if self._look is None:
            return
        judged = self._look.judged
        shown = f"  ({self._order_text()})"
        text = Text.assemble(one_line(rank_counts(judged)), (shown, "dim"))
        self.query_one("#counts", Static).update(text)
        if self._colour is None:
            self.query_one(RankList).show(judged, self._order)
        else:
            self.query_one(MeshView).show(judged, self._colour)

    def _order_text(self) -> str:
        judged = self._look.judged if self._look is not None else JudgedRanks()
        if self._colour is None:
            found = f", {number_of(judged.matching, 'rank')}" if self._order.text and not judged.is_whole else ""
            return f"{one_line(self._order.describe())}{found}"
        part = "" if judged.is_whole else f" of {number_of(len(judged.ranks), 'rank')}: / searches others"
        return f"map by {self._colour.value}{part}"

    def _want_page(self) -> None:
        """Ask for the ranks on the screen, and for those of a screen before and after it."""
        table, height = self.query_one(RankList), max(self.size.height, _LEAST_HEIGHT)
        page = self._order.request(max(0, table.first_line - height), 3 * height)
        if self._colour is not None:
            page = GetStatusRequest(most_ranks=MOST_LISTED, search=self._order.text, sort=RANK_SORT_RANK)
        self.post_message(PageWanted(page))

    def on_rank_list_uncovered(self) -> None:
        """Bring the ranks that somebody has scrolled to."""
        self._want_page()

    def _show(self, pane: Static, text: Text) -> None:
        pane.update(text)
        pane.display = bool(text.plain)

    def _hints(self) -> str:
        return next((hints for hints in _ALL_HINTS if len(hints) <= self.size.width), _ALL_HINTS[-1])

    def _set_order(self, order: RankOrder) -> None:
        self._order = order
        self._want_page()
        self._draw_ranks()

    def action_only_odd(self) -> None:
        """Show odd ranks only, or all."""
        self._set_order(replace(self._order, only_odd=not self._order.only_odd))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._set_order(self._order.next_key())

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._set_order(replace(self._order, is_reversed=not self._order.is_reversed))

    def action_map(self) -> None:
        """Show the list, then the map by each quantity that is known."""
        if self._look is None:
            return
        views = [None, *known_colours(self._look.judged)]
        self._colour = views[(views.index(self._colour) + 1) % len(views)] if self._colour in views else None
        table, mesh = self.query_one(RankList), self.query_one(MeshView)
        table.display, mesh.display = self._colour is None, self._colour is not None
        (table if self._colour is None else mesh).focus()
        self._want_page()
        self._draw_ranks()

    def action_filter(self) -> None:
        """Ask what to search for."""
        entry = self.query_one("#filter", Input)
        entry.display = True
        entry.focus()

    def action_clear_filter(self) -> None:
        """Show all ranks again."""
        self.query_one("#filter", Input).value = ""
        self._end_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while somebody types. What cannot be searched for yet, such as half a range, changes nothing."""
        text = event.value.strip().lower()
        with suppress(ValueError):
            RankSearch(text)
            self._set_order(replace(self._order, text=text))

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the list."""
        self._end_filter()

    def _end_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        (self.query_one(RankList) if self._colour is None else self.query_one(MeshView)).focus()
