"""A sliding window that stays sorted, and statistics of it that a few odd values do not move.

Adding a value copies the window, which is cheap: it is a copy of memory. Sorting anew would cost ten times that.
"""

from bisect import bisect_left, insort
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


@dataclass(frozen=True, slots=True)
class SortedWindow:
    """The newest values, in the order in which they came and in the order of their size."""

    newest: tuple[float, ...] = ()
    ordered: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Sequence[float]) -> "SortedWindow":
        """Return the window of values in the order in which they came."""
        return cls(tuple(values), tuple(sorted(values)))

    def __len__(self) -> int:
        return len(self.ordered)

    def with_value(self, value: float, size: int) -> "SortedWindow":
        """Return the window with one more value, and without the oldest if it then had more than ``size``."""
        newest, ordered = self.newest, list(self.ordered)
        if len(newest) >= size:
            del ordered[bisect_left(ordered, newest[0])]
            newest = newest[1:]
        insort(ordered, value)
        return SortedWindow((*newest, value), tuple(ordered))

    def quantile(self, share: float) -> float:
        """Return the value that ``share`` of the values are at or below. The window must not be empty."""
        return self.ordered[min(len(self.ordered) - 1, int(share * len(self.ordered)))]

    def median(self) -> float:
        """Return the median: of an even number of values, the mean of both in the middle. There must be values."""
        middle = len(self.ordered) // 2
        return (self.ordered[(len(self.ordered) - 1) // 2] + self.ordered[middle]) / 2

    def sigma(self) -> float:
        """Return 1.4826 x the median absolute deviation from the median. The window must not be empty.

        Half of the values are nearest to the median, and they are neighbours in the sorted window. So the deviation is
        the least, over all neighbours of that number, of the distance of the farther end. A binary search finds it.
        """
        ordered = self.ordered
        count, middle = len(ordered) // 2 + 1, self.quantile(0.5)
        low, high = 0, len(ordered) - count
        while low < high:
            first = (low + high) // 2
            if middle - ordered[first] > ordered[first + count - 1] - middle:
                low = first + 1
            else:
                high = first
        ends = (max(middle - ordered[i], ordered[i + count - 1] - middle) for i in (low, max(0, low - 1)))
        return MAD_TO_SIGMA * min(ends)
