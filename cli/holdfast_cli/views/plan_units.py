"""Sizes and durations of a plan in units that people read. Numbers of one table share a unit."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """A unit and its size in bytes or seconds."""

    name: str
    size: float

    def number(self, value: float) -> str:
        """Return ``value`` in this unit, with three digits or two decimals, and never as a power of ten."""
        scaled = value / self.size
        if scaled >= 100 or not scaled:
            return f"{scaled:,.0f}"
        if scaled < 0.01:
            return "<0.01"
        return f"{scaled:.1f}" if scaled >= 10 else f"{scaled:.2f}"


_SIZES = (Unit("TB", 1e12), Unit("GB", 1e9), Unit("MB", 1e6), Unit("KB", 1e3))
_DURATIONS = (Unit("s", 1.0), Unit("ms", 1e-3), Unit("µs", 1e-6))


def size_unit(sizes: Iterable[float]) -> Unit:
    """Return the unit for a column of sizes in bytes: the largest has at least one before the point."""
    return _fitting(_SIZES, max(sizes, default=0.0))


def duration_unit(durations: Iterable[float]) -> Unit:
    """Return the unit for a column of durations in seconds."""
    return _fitting(_DURATIONS, max(durations, default=0.0))


def size_text(size: float) -> str:
    """Return a size in bytes with its unit, such as "8.22 MB"."""
    unit = size_unit([size])
    return f"{unit.number(size)} {unit.name}"


def _fitting(units: tuple[Unit, ...], largest: float) -> Unit:
    return next((unit for unit in units if largest >= unit.size), units[-1])
