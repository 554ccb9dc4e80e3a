"""Statistics that a few odd values do not move."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

MAD_TO_SIGMA = 1.4826
"""Makes the median absolute deviation a standard deviation for normal noise."""


@dataclass(frozen=True)
class Spread:
    """The middle of some values, and how far they scatter."""

    middle: float
    """Their median."""
    sigma: float


def spread(
    values: Iterable[float],
    *,
    least_sigma_ratio: float = 0.0,
    median_of: Callable[[Iterable[float]], float] = median,
) -> Spread:
    """Return the median and max(1.4826 x MAD, least_sigma_ratio x |median|) of one or more values.

    With ``median_low`` as ``median_of``, half of the values may be far too large.
    """
    known = list(values)
    middle = median_of(known)
    deviation = median_of(abs(value - middle) for value in known)
    return Spread(middle, max(MAD_TO_SIGMA * deviation, least_sigma_ratio * abs(middle)))


def theil_sen_slope(values: Sequence[float]) -> float:
    """Return the median slope of all pairs of two or more values that are evenly spaced, per place."""
    pairs = combinations(enumerate(values), 2)
    return median((later - earlier) / (j - i) for (i, earlier), (j, later) in pairs)
