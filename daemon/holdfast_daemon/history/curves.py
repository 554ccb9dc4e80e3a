"""Reads a quantity over the steps of a run in buckets, by queries that return one row for each bucket."""

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from holdfast_daemon.history.history_tables import QUANTITIES
from holdfast_daemon.history.rows import Curve, checked

_Row: TypeAlias = tuple[int, float, int, float | None, float | None, float | None, int | None]
"""Last step, its Unix time, count, mean, lowest and highest of the finite values, first step that was not finite."""


@dataclass
class _Bucket:
    """What the steps of a bucket sum up to."""

    step: int = -1
    unix_s: float = 0.0
    count: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    nonfinite: int | None = None

    def add(self, row: _Row) -> None:
        step, unix_s, count, mean, low, high, nonfinite = checked(row, nullable=4)
        if step > self.step:
            self.step, self.unix_s = step, unix_s
        if nonfinite is not None and (self.nonfinite is None or nonfinite < self.nonfinite):
            self.nonfinite = nonfinite
        if mean is not None and low is not None and high is not None:
            self.count += count
            self.total += count * mean
            self.low, self.high = min(low, self.low), max(high, self.high)

    def append_to(self, curve: Curve) -> None:
        if self.step < 0:
            return
        mean = self.total / self.count if self.count else math.nan
        curve.step.append(self.step)
        curve.unix_s.append(self.unix_s)
        curve.mean.append(mean if math.isfinite(mean) else None)
        curve.low.append(self.low if self.count else None)
        curve.high.append(self.high if self.count else None)
        if self.nonfinite is not None:
            curve.nonfinite.append(self.nonfinite)


@dataclass(frozen=True)
class _Part:
    """Steps of a generation that no later generation has undone: from ``first`` to before ``end``."""

    generation: int
    first: int
    end: int


@dataclass(frozen=True)
class CurveReader:
    """Reads the curves of one start of a run."""

    connection: sqlite3.Connection
    start: int
    """Number of the start in the file."""

    def read(self, quantity: str, *, points: int, since_step: int, until_step: int | None) -> Curve:
        """Return the curve of one of QUANTITIES, or of a metric. All have the same buckets.

        Raises sqlite3.Error and ValueError.
        """
        curve = Curve(quantity)
        until = math.inf if until_step is None else until_step + 1
        parts = [
            _Part(part.generation, max(part.first, since_step), int(min(part.end, until))) for part in self._parts()
        ]
        parts = [part for part in parts if part.first < part.end]
        if not parts:
            return curve
        first, end = min(part.first for part in parts), max(part.end for part in parts)
        width = -(-(end - first) // points)
        for low in range(first, end, width):
            bucket = _Bucket()
            for part in parts:
                if part.first < low + width and low < part.end:
                    add = self._add if quantity in QUANTITIES else self._add_metric
                    add(bucket, quantity, part, (max(low, part.first), min(low + width, part.end)))
            bucket.append_to(curve)
        return curve

    def _parts(self) -> Iterator[_Part]:
        """Yield what is left of each generation, the newest first. A restart undoes all steps from its first one on."""
        undone_from = math.inf
        generations = self.connection.execute(
            "SELECT generation, first_step FROM generations WHERE start = ? ORDER BY generation DESC", (self.start,)
        ).fetchall()
        for generation, first_step in generations:
            newest = self.connection.execute(
                "SELECT max(step) FROM steps WHERE start = ?1 AND generation = ?2 "
                "UNION ALL SELECT last_step FROM (SELECT last_step FROM thinned WHERE start = ?1 AND generation = ?2 "
                "ORDER BY step DESC LIMIT 1)",
                (self.start, generation),
            ).fetchall()
            end = max((step + 1 for (step,) in newest if step is not None), default=first_step)
            yield _Part(generation, first_step, int(min(end, undone_from)))
            undone_from = min(first_step, undone_from)

    def _add(self, bucket: _Bucket, quantity: str, part: _Part, steps: tuple[int, int]) -> None:
        """Add the steps of a part to a bucket, from the first of ``steps`` to before the second."""
        bit = 1 << QUANTITIES.index(quantity)
        row: _Row = self.connection.execute(
            f"SELECT max(step), max(unix_s), count({quantity}), avg({quantity}), min({quantity}), max({quantity}), "
            f"min(step) FILTER (WHERE nonfinite & {bit}) FROM steps WHERE start = ? AND generation = ? "
            f"AND step >= ? AND step < ? AND ({quantity} IS NOT NULL OR nonfinite & {bit})",
            (self.start, part.generation, *steps),
        ).fetchone()
        if row[0] is not None:  # else there is no such step
            bucket.add(row)
        # A bucket of old steps that a restart has undone in part is left out.
        for thinned in self.connection.execute(
            f"SELECT last_step, unix_s, {quantity}_count, {quantity}, {quantity}_low, {quantity}_high, "
            f"iif(nonfinite & {bit}, step, NULL) FROM thinned WHERE start = ? AND generation = ? "
            f"AND step >= ? AND step < ? AND last_step < ? AND ({quantity}_count OR nonfinite & {bit})",
            (self.start, part.generation, *steps, part.end),
        ):
            bucket.add(thinned)

    def _add_metric(self, bucket: _Bucket, name: str, part: _Part, steps: tuple[int, int]) -> None:
        """Add the rows of a metric, likewise."""
        row: _Row = self.connection.execute(
            "SELECT max(step), max(unix_s), count(value), avg(value), min(value), max(value), "
            "min(step) FILTER (WHERE value IS NULL) FROM metrics WHERE start = ? AND name = ? AND generation = ? "
            "AND step >= ? AND step < ?",
            (self.start, name, part.generation, *steps),
        ).fetchone()
        if row[0] is not None:
            bucket.add(row)
