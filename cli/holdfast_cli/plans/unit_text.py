"""Numbers of a plan as people read them: each in the unit that suits its size."""

from collections.abc import Sequence

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B"))
_DURATIONS = (
    (365.25 * 86400, "years"), (86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"),
)  # fmt: skip
_LONG_FROM = 2.0
"""From this number on, minutes and longer units are used: "90 s" is plainer than "1.5 min"."""


def size_text(size: float) -> str:
    """Return bytes with their unit: ``8.22 MB``."""
    return _text(size, _SIZES, {})


def duration_text(seconds: float) -> str:
    """Return a duration with its unit: ``2.50 h``."""
    return _text(seconds, _DURATIONS, {name: _LONG_FROM for _, name in _DURATIONS[:4]})


def number_text(value: float) -> str:
    """Return a number with three digits: ``1.25``, ``16,384`` or ``6.02e+23``."""
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e7 else f"{value:.3g}"


def value_text(value: float, unit: str) -> str:
    """Return a number in a unit of formulas: ``s``, ``bytes``, ``share``, ``FLOP`` or none."""
    match unit:
        case "s":
            return duration_text(value)
        case "bytes":
            return size_text(value)
        case "share":
            return f"{value:.1%}"
    return f"{number_text(value)} {unit}".rstrip()


def _text(value: float, units: Sequence[tuple[float, str]], least: dict[str, float]) -> str:
    if not value:
        return "0"
    fits = ((size, name) for size, name in units if value >= size * least.get(name, 1.0))
    size, name = next(fits, units[-1])
    return f"{_three_digits(value / size)} {name}"


def _three_digits(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"
