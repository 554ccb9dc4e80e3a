"""The ranks page: one value for each rank on it, its legend, the odd ranks, and what changes.

One :class:`RankCells` serves all browsers that show the same page in the same colour, so that a further one costs no
more than its bytes. A browser gets all values once, and then what has changed.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast_core.model import CoreState
from holdfast_core.reading.rank_health import HEALTH
from holdfast_daemon.console.ranks.own_step_times import OwnStepTimes
from holdfast_daemon.console.ranks.rank_table import RankReader, RankTable, Row
from holdfast_daemon.control.rank_pages import Oddity, check_page, page_of
from holdfast_proto.message_json import enum_name
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store

Value = float | int | None

COLOURS = ("health", "phase", "step_time", "memory", "utilisation")
MOST_CHANGES = 400
"""Most values that are sent at once. With more changes, the odd ranks go first and the others follow in turn."""
MOST_ODD = 50
MOST_CELLS = 1024
"""Ranks on a page."""
_FULL_RATIO = 0.95
_SLOW_RATIO = 1.5
_AXES = ("pp", "dp", "dp_replicate", "dp_shard", "cp", "ep", "tp")
"""Usual axes of a mesh, outermost first. Others follow by name."""
_PHASES = tuple(enum_name(common.Phase, number).replace("_", " ") for number in sorted(common.Phase.values()) if number)

_ODD = control.GetStatusRequest(most_ranks=MOST_ODD, only_odd=True, sort=control.RANK_SORT_ODD_FIRST)

OWN_TIME_NOTE = "time that the rank needs for itself in a step: work of its GPU, or of its training thread on a CPU"


class RankCells:
    """The values of one colour of one page of the ranks, as all browsers have them."""

    def __init__(self, reader: RankReader, colour: str, search: str = "", skip: int = 0) -> None:
        """Raise ValueError if there is no such colour, or the search cannot be. ``skip``: ranks before this page."""
        if colour not in COLOURS:
            raise ValueError(f"there is no colour {colour[:40]!r}: use {', '.join(COLOURS)}")
        self._page = control.GetStatusRequest(
            most_ranks=MOST_CELLS, search=search, skip_ranks=skip, sort=control.RANK_SORT_RANK
        )
        check_page(self._page)
        self._reader = reader
        self._colour = colour
        self._numbers: list[int] = []
        self._matching = 0
        self._times: dict[int, float] = {}
        self._own = OwnStepTimes()
        self._shown: list[Value] = []
        self._legend: dict[str, Any] = {}
        self._about: dict[str, Any] = {}
        self._layout: tuple[object, ...] = ()
        self._turn = 0

    def frame(self, state: CoreState) -> dict[str, Any]:
        """Return all values, and take them as the ones that browsers have."""
        table = self._reader.table(state)
        self._numbers, self._matching = self._ranks_on_page(table)
        self._shown, self._legend = self._values(state, table)
        self._about = self._about_all(table)
        self._layout = self._layout_key(state, table)
        return self.last_frame(state)

    def last_frame(self, state: CoreState) -> dict[str, Any]:
        """Return the values that the other browsers have: the next change continues from them."""
        rows = self._reader.table(state).rows
        axes, places = _places(rows, self._numbers)
        nodes = list(state.record.nodes or sorted(state.nodes))
        index = {name: number for number, name in enumerate(nodes)}
        node_of: list[int | None] = []
        for number in self._numbers:
            row = rows.get(number)
            if row is not None and row.node not in index:
                index[row.node] = len(nodes)
                nodes.append(row.node)
            node_of.append(None if row is None else index[row.node])
        used = {at for at in node_of if at is not None}
        if len(self._numbers) < self._reader.table(state).size:  # a page names its own nodes only
            order = sorted(used)
            nodes = [nodes[at] for at in order]
            place = {at: number for number, at in enumerate(order)}
            node_of = [None if at is None else place[at] for at in node_of]
        return {
            "count": len(self._shown),
            "ranks": list(self._numbers),
            "first": self._page.skip_ranks,
            "matching": self._matching,
            "page_size": MOST_CELLS,
            "axes": axes,
            "places": places,
            "nodes": nodes,
            "node_of": node_of,
            "values": list(self._shown),
            "legend": self._legend,
            **self._about,
        }

    def change(self, state: CoreState) -> tuple[str, dict[str, Any]] | None:
        """Return the name and the contents of the next event; None: nothing has changed."""
        table = self._reader.table(state)
        if self._layout_key(state, table) != self._layout:
            return "frame", self.frame(state)
        values, legend = self._values(state, table)
        about = self._about_all(table)
        change: dict[str, Any] = {name: value for name, value in about.items() if value != self._about[name]}
        self._about = about
        chosen = self._chosen([at for at, value in enumerate(values) if value != self._shown[at]], about["odd"])
        if chosen:
            change["values"] = {"at": chosen, "to": [values[at] for at in chosen]}
            for at in chosen:
                self._shown[at] = values[at]
        if legend != self._legend:
            change["legend"] = self._legend = legend
        return ("change", change) if change else None

    def _ranks_on_page(self, table: RankTable) -> tuple[list[int], int]:
        """Return the ranks on this page, and how many are on all pages. Those that nothing is known of count, too."""
        if self._page.search.strip():
            page, matching = page_of(self._page, table.facts(tuple(Oddity)), table.odd)
            return [one.number for one in page], matching
        first = self._page.skip_ranks
        return list(range(table.size))[first : first + MOST_CELLS], table.size

    def _about_all(self, table: RankTable) -> dict[str, Any]:
        """Return what a page says of all ranks: how many there are of each oddity, and the odd ones."""
        odd, listed = self._oddest(table), set(self._numbers)
        return {
            "odd": odd,
            "behind": sorted(number for number in odd if table.is_behind(number)),
            "odd_elsewhere": {
                str(number): {"node": table.rows[number].node, "what": table.oddities[number].word}
                for number in odd
                if number not in listed
            },
            "odd_count": sum(number for kind, number in table.totals.items() if kind in table.odd),
            "totals": {kind.word: number for kind, number in table.totals.items()},
        }

    def _chosen(self, changed: Sequence[int], odd: Sequence[int]) -> list[int]:
        """Return the ranks whose values are sent now. Changes of health are all sent."""
        if self._colour == "health" or len(changed) <= MOST_CHANGES:
            self._turn = 0
            return list(changed)
        known = set(changed)
        cells = {number: at for at, number in enumerate(self._numbers)}
        first = [cells[number] for number in odd if cells.get(number) in known]
        later = [at for at in changed if at >= self._turn] + [at for at in changed if at < self._turn]
        chosen = list(dict.fromkeys((*first, *later)))[:MOST_CHANGES]
        self._turn = chosen[-1] + 1
        return sorted(chosen)

    def _values(self, state: CoreState, table: RankTable) -> tuple[list[Value], dict[str, Any]]:
        match self._colour:
            case "health":
                return self._filled(table.health.items()), {"kind": "words", "words": list(HEALTH)}
            case "phase":
                phases = ((row.rank, row.phase - 1 if row.phase else None) for row in table.rows.values())
                return self._filled(phases), {"kind": "words", "words": list(_PHASES)}
            case "step_time":
                self._times = dict(self._own.times_s(state))
                values = self._filled(self._times.items())
                return values, self._range(values, "s", OWN_TIME_NOTE)
            case "memory":
                sizes = (
                    (row.rank, rounded(row.memory_bytes / 2**30)) for row in table.rows.values() if row.memory_bytes
                )
                values = self._filled(sizes)
                return values, self._range(values, "GiB", "memory that the rank's tensors use, or the process on a CPU")
        values = self._filled(self._own.utilisations(state).items())
        legend = {"kind": "range", "unit": "%", "low": 0, "high": 100, "note": "time in which the GPU ran a kernel"}
        return values, legend

    def _range(self, values: Sequence[Value], unit: str, note: str) -> dict[str, Any]:
        """Return the legend of numbers. Its ends move only if the values leave it, or use less than half of it."""
        known = [value for value in values if value is not None]
        low, high = (min(known), max(known)) if known else (0.0, 0.0)
        old_low, old_high = self._legend.get("low", 0.0), self._legend.get("high", 0.0)
        fits = old_low <= low and high <= old_high and old_high - old_low <= 2.0 * (high - low)
        if not fits:
            margin = 0.1 * (high - low)
            old_low, old_high = rounded(max(0.0, low - margin)), rounded(high + margin)
        return {"kind": "range", "unit": unit, "low": old_low, "high": old_high, "note": note}

    def _filled(self, pairs: Iterable[tuple[int, Value]]) -> list[Value]:
        known = dict(pairs)
        return [known.get(number) for number in self._numbers]

    def _oddest(self, table: RankTable) -> list[int]:
        """Return the odd ranks, the oddest first, and then those that differ in this colour. A healthy run has none."""
        page, _ = page_of(_ODD, table.facts(table.odd), table.odd)
        odd = [one.number for one in page]
        known = set(odd)
        return [*odd, *(number for number in self._outliers(table) if number not in known)][:MOST_ODD]

    def _outliers(self, table: RankTable) -> list[int]:
        """Return the ranks that need much longer than usual for themselves, or have little memory left."""
        if self._colour == "step_time":
            usual = sorted(self._times.values())[len(self._times) // 2] if self._times else 0.0
            slow = [(-value, number) for number, value in self._times.items() if value > _SLOW_RATIO * usual > 0.0]
            return [number for _, number in sorted(slow) if number in table.rows]
        if self._colour != "memory":
            return []
        return [
            number
            for number, row in table.rows.items()
            if row.memory_limit_bytes and row.memory_bytes > _FULL_RATIO * row.memory_limit_bytes
        ]

    def _layout_key(self, state: CoreState, table: RankTable) -> tuple[object, ...]:
        """Return what a frame shows besides the values: with another one, browsers need a new frame."""
        known = sum(row.life != store.LIFE_STARTING for row in table.rows.values())
        found = tuple(self._ranks_on_page(table)[0]) if self._page.search.strip() else ()
        nodes = tuple(state.record.nodes)
        return table.size, state.record.generation, nodes, len(table.rows), known == table.size, found


def rounded(value: float, digits: int = 2) -> float:
    """Return a number with N significant digits: pages need no more, and fewer values change."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else 0.0


def _places(rows: Mapping[int, Row], numbers: Sequence[int]) -> tuple[list[dict[str, Any]], list[list[int]] | None]:
    """Return the axes of the mesh and the place of each rank; [] and None if a rank has not named its place."""
    coordinates = [dict(rows[number].message.coordinates) if number in rows else {} for number in numbers]
    names = {axis for place in coordinates for axis in place}
    if not names or any(place.keys() != names for place in coordinates):
        return [], None
    usual: Callable[[str], tuple[int, str]] = lambda axis: (_AXES.index(axis) if axis in _AXES else len(_AXES), axis)  # noqa: E731
    axes = sorted(names, key=usual)
    places = [[place[axis] for axis in axes] for place in coordinates]
    return [{"name": axis, "size": 1 + max(place[at] for place in places)} for at, axis in enumerate(axes)], places
