"""Histograms that are observed on the event loop and read at scrapes."""

from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily, Metric

STEP_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
STALL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


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

    def family(self, name: str, text: str, labels: dict[str, str]) -> Metric:
        """Return this histogram as a metric family."""
        family = HistogramMetricFamily(name, text, labels=list(labels))
        buckets = [
            ("+Inf" if bound == float("inf") else str(bound), float(n))
            for bound, n in zip(self._bounds, self._counts, strict=True)
        ]
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family
