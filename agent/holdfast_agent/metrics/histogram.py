"""Histograms that are observed on the event loop and read at scrapes."""

from collections.abc import Sequence

# prometheus_client.Histogram also exports the time of its creation, unless the whole process forbids it. And if another
# program of the job needs PROMETHEUS_MULTIPROC_DIR, it writes files there, and raises if the folder is missing.


class Histogram:
    """A cumulative histogram without labels of its own: observed on the event loop, read at scrapes."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self._bounds = (*buckets, float("inf"))
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._sum += value
        for index, bound in enumerate(self._bounds):
            if value <= bound:
                self._counts[index] += 1

    def row(self, *label_values: str) -> tuple[Sequence[str], Sequence[float], float]:
        """Return the row of a histogram family: label values, cumulative counts, sum."""
        return label_values, self._counts, self._sum
