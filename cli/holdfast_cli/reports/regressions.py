"""Checks of one run against another: which change of a number is a regression."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast_cli.errors import UsageError
from holdfast_cli.reports.figures import FIGURES, NAMES, Figure

DEFAULT = "default"
DEFAULT_CHECKS = ("loss +2%", "tokens_per_s -5%", "step_p95_s +20%", "goodput -0.02")

PASSED, REGRESSED, UNKNOWN = "passed", "regressed", "unknown"

_CHECK = re.compile(
    r"\s*(?P<name>\w+)\s+(?P<sign>[+-])(?P<change>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(?P<percent>%?)\s*"
)


@dataclass(frozen=True)
class RegressionCheck:
    """The largest change of a figure, from the first run to the second, that is no regression."""

    text: str
    figure: Figure
    is_fall: bool
    """Whether a fall of the number is a regression, and not a rise."""
    allowed: float
    """Largest change that is none, at least 0."""
    is_percent: bool
    """Whether ``allowed`` is in percent of the first run's number, and not in the figure's unit."""

    def outcome(
        self, first: Mapping[str, float], second: Mapping[str, float], spoiled: Collection[str] = frozenset()
    ) -> str:
        """Return PASSED, REGRESSED, or UNKNOWN if one of the runs lacks the number.

        ``spoiled``: names of numbers of the second run that are not finite. That is a regression if the first run's is.
        """
        name = self.figure.name
        if name in first and name in spoiled:
            return REGRESSED
        if name not in first or name not in second:
            return UNKNOWN
        allowed = abs(first[name]) * self.allowed / 100.0 if self.is_percent else self.allowed
        change = first[name] - second[name] if self.is_fall else second[name] - first[name]
        return REGRESSED if change > allowed else PASSED


def parse_checks(texts: Iterable[str]) -> list[RegressionCheck]:
    """Return the checks of ``--fail-on``. Raises UsageError, in one line, for one that makes no sense."""
    found = []
    for text in texts:
        found += [_parsed(one) for one in (DEFAULT_CHECKS if text.strip() == DEFAULT else (text,))]
    return found


def _parsed(text: str) -> RegressionCheck:
    start = f"--fail-on {text[:80]!r}"
    match = _CHECK.fullmatch(text)
    if match is None:
        raise UsageError(f"{start}: write a name and a signed change, such as 'tokens_per_s -5%' or 'goodput -0.02'")
    figure = next((figure for figure in FIGURES if figure.name == match["name"]), None)
    if figure is None:
        raise UsageError(f"{start}: no number is called {match['name'][:40]}: use {', '.join(NAMES)}")
    bad_sign = {"better": "-", "worse": "+"}.get(figure.more_is, match["sign"])
    if match["sign"] != bad_sign:
        raise UsageError(f"{start}: more is {figure.more_is} here: write {bad_sign} before the change")
    change = float(match["change"])
    if not math.isfinite(change):
        raise UsageError(f"{start}: this change is too large for a number: write a smaller one")
    return RegressionCheck(text.strip(), figure, match["sign"] == "-", change, bool(match["percent"]))
