"""The ranks page: one value for each rank, its legend, the odd ranks, and what changes.

One :class:`RankCells` serves all pages that show the same colour of the same run, so that a further page costs no more
than its bytes. A page gets all values once, and then what has changed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast_core.model import CoreState
from holdfast_core.reading.rank_health import CULPRIT, EXITED, HEALTH, STALLED, STARTING, WAITING, is_behind
from holdfast_daemon.console.ranks.own_step_times import OwnStepTimes
from holdfast_daemon.console.ranks.rank_table import RankReader, RankTable
from holdfast_proto.message_json import enum_name
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

Value = float | int | None

COLOURS = ("health", "phase", "step_time", "memory", "utilisation")
MOST_CHANGES = 400
"""Most values that are sent at once. With more changes, the odd ranks go first and the others follow in turn."""
MOST_ODD = 50
_FULL_RATIO = 0.95
_SLOW_RATIO = 1.5
_AXES = ("pp", "dp", "dp_replicate", "dp_shard", "cp", "ep", "tp")
"""Usual axes of a mesh, outermost first. Others follow by name."""
_PHASES = tuple(enum_name(common.Phase, number).replace("_", " ") for number in sorted(common.Phase.values()) if number)

OWN_TIME_NOTE = "time that the rank needs for itself in a step: work of its GPU, or of its training thread on a CPU"


class RankCells:
    """The values of one colour of one run, as all its pages have them."""

    def __init__(self, reader: RankReader, colour: str) -> None:
        """Raise ValueError if there is no such colour."""
        if colour not in COLOURS:
            raise ValueError(f"there is no colour {colour[:40]!r}: use {', '.join(COLOURS)}")
        self._reader = reader
        self._colour = colour
        self._own = OwnStepTimes()
        self._shown: list[Value] = []
        self._legend: dict[str, Any] = {}
        self._odd: list[int] = []
        self._behind: list[int] = []
        self._layout: tuple[object, ...] = ()
        self._turn = 0

    def frame(self, state: CoreState) -> dict[str, Any]:
        """Return all values, and take them as the ones that pages have."""
        table = self._reader.table(state)
        self._shown, self._legend = self._values(state, table)
        self._odd = self._oddest(table)
        self._behind = _behind(table, self._odd)
        self._layout = _layout_key(state, table)
        return self.last_frame(state)

    def last_frame(self, state: CoreState) -> dict[str, Any]:
        """Return the values that the other pages have: the next change continues from them."""
        axes, places = _places(state, len(self._shown))
        nodes = list(state.record.nodes or sorted(state.nodes))
        index = {name: number for number, name in enumerate(nodes)}
        node_of: list[int | None] = [None] * len(self._shown)
        for row in self._reader.table(state).rows.values():
            if row.node not in index:
                index[row.node] = len(nodes)
                nodes.append(row.node)
            if row.rank < len(node_of):
                node_of[row.rank] = index[row.node]
        return {
            "count": len(self._shown),
            "axes": axes,
            "places": places,
            "nodes": nodes,
            "node_of": node_of,
            "values": list(self._shown),
            "legend": self._legend,
            "odd": list(self._odd),
            "behind": list(self._behind),
        }

    def change(self, state: CoreState) -> tuple[str, dict[str, Any]] | None:
        """Return the name and the contents of the next event; None: nothing has changed."""
        table = self._reader.table(state)
        if _layout_key(state, table) != self._layout:
            return "frame", self.frame(state)
        values, legend = self._values(state, table)
        change: dict[str, Any] = {}
        odd = self._oddest(table)
        chosen = self._chosen([at for at, value in enumerate(values) if value != self._shown[at]], odd)
        if chosen:
            change["values"] = {"at": chosen, "to": [values[at] for at in chosen]}
            for at in chosen:
                self._shown[at] = values[at]
        if odd != self._odd:
            change["odd"] = self._odd = odd
        if (behind := _behind(table, odd)) != self._behind:
            change["behind"] = self._behind = behind
        if legend != self._legend:
            change["legend"] = self._legend = legend
        return ("change", change) if change else None

    def _chosen(self, changed: Sequence[int], odd: Sequence[int]) -> list[int]:
        """Return the ranks whose values are sent now. Changes of health are all sent."""
        if self._colour == "health" or len(changed) <= MOST_CHANGES:
            self._turn = 0
            return list(changed)
        known = set(changed)
        first = [at for at in odd if at in known]
        later = [at for at in changed if at >= self._turn] + [at for at in changed if at < self._turn]
        chosen = list(dict.fromkeys((*first, *later)))[:MOST_CHANGES]
        self._turn = chosen[-1] + 1
        return sorted(chosen)

    def _values(self, state: CoreState, table: RankTable) -> tuple[list[Value], dict[str, Any]]:
        match self._colour:
            case "health":
                return _filled(table, table.health.items()), {"kind": "words", "words": list(HEALTH)}
            case "phase":
                phases = ((row.rank, row.phase - 1 if row.phase else None) for row in table.rows.values())
                return _filled(table, phases), {"kind": "words", "words": list(_PHASES)}
            case "step_time":
                times = self._own.times_s(state)
                values = _filled(table, times.items())
                return values, self._range(values, "s", OWN_TIME_NOTE)
            case "memory":
                sizes = (
                    (row.rank, rounded(row.memory_bytes / 2**30)) for row in table.rows.values() if row.memory_bytes
                )
                values = _filled(table, sizes)
                return values, self._range(values, "GiB", "memory that the rank's tensors use, or the process on a CPU")
        values = _filled(table, self._own.utilisations(state).items())
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

    def _oddest(self, table: RankTable) -> list[int]:
        """Return the odd ranks, the oddest first. A healthy run has none."""
        order = {EXITED: 0, CULPRIT: 1, STALLED: 2, STARTING: 4, WAITING: 7}
        if all(health == STARTING for health in table.health.values()):
            del order[STARTING]  # all start: none of them is odd
        if table.pausing:
            del order[WAITING]  # they wait for an evaluation or a save
        keys: list[tuple[int, float, int]] = []
        slow = self._slow_ranks() if self._colour == "step_time" else {}
        for number, health in table.health.items():
            row = table.rows[number]
            behind = table.newest_step - row.step
            if health in order:
                keys.append((order[health], -row.stalled_s, number))
            elif _is_behind(table, number):
                keys.append((3, -behind, number))
            elif number in slow:
                keys.append((5, -slow[number], number))
            elif row.memory_limit_bytes and row.memory_bytes > _FULL_RATIO * row.memory_limit_bytes:
                keys.append((6, -row.memory_bytes / row.memory_limit_bytes, number))
        return [number for _, _, number in sorted((kind, 0.0 if kind in (2, 7) else by, at) for kind, by, at in keys)][
            :MOST_ODD
        ]

    def _slow_ranks(self) -> dict[int, float]:
        times = {at: value for at, value in enumerate(self._shown) if value is not None}
        usual = sorted(times.values())[len(times) // 2] if times else 0.0
        return {at: value for at, value in times.items() if value > _SLOW_RATIO * usual > 0.0}


def rounded(value: float, digits: int = 2) -> float:
    """Return a number with N significant digits: pages need no more, and fewer values change."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else 0.0


def _is_behind(table: RankTable, number: int) -> bool:
    step_s = table.state.deadlines.median_step_s
    return is_behind(table.health[number], table.rows[number].step, table.newest_step, step_s)


def _behind(table: RankTable, odd: Iterable[int]) -> list[int]:
    """Return those of the odd ranks that are behind: their own values may be those of any healthy rank."""
    return sorted(number for number in odd if _is_behind(table, number))


def _filled(table: RankTable, pairs: Iterable[tuple[int, Value]]) -> list[Value]:
    values: list[Value] = [None] * table.size
    for number, value in pairs:
        if number < table.size:
            values[number] = value
    return values


def _layout_key(state: CoreState, table: RankTable) -> tuple[object, ...]:
    """Return what a frame shows besides the values: with another one, pages need a new frame."""
    known = sum(row.life != store.LIFE_STARTING for row in table.rows.values())
    return table.size, state.record.generation, tuple(state.record.nodes), len(table.rows), known == table.size


def _places(state: CoreState, count: int) -> tuple[list[dict[str, Any]], list[list[int]] | None]:
    """Return the axes of the mesh and the place of each rank; [] and None if a rank has not named its place."""
    coordinates: dict[int, dict[str, int]] = {}
    for node in state.nodes.values():
        if node.generation == state.record.generation:
            coordinates.update((rank.rank, dict(rank.coordinates)) for rank in node.ranks)
    names = {axis for place in coordinates.values() for axis in place}
    if not names or any(coordinates.get(rank, {}).keys() != names for rank in range(count)):
        return [], None
    usual: Callable[[str], tuple[int, str]] = lambda axis: (_AXES.index(axis) if axis in _AXES else len(_AXES), axis)  # noqa: E731
    axes = sorted(names, key=usual)
    places = [[coordinates[rank][axis] for axis in axes] for rank in range(count)]
    return [{"name": axis, "size": 1 + max(place[at] for place in places)} for at, axis in enumerate(axes)], places
