"""Declares metric families once: for the collectors that export them, and for pages and dashboards about them.

Needs the package ``prometheus_client``; the hooks never import this module.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

PREFIX = "holdfast_"

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]

Rows: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""Label values, in the order of the family's labels, and the sample's value."""


@dataclass(frozen=True, kw_only=True)
class MetricFamily:
    """One metric family as ``/metrics`` shows it. It holds no samples: a collector reads those at each scrape."""

    name: str
    """Name with prefix and unit (``_seconds``, ``_bytes``, ``_ratio``); a counter's name ends in ``_total``."""
    kind: Kind
    labels: tuple[str, ...]
    help: str
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label -> all its values, for labels that take a fixed set. Collectors export each value from the start."""
    optional: frozenset[str] = frozenset()
    """Labels that a sample lacks if there is nothing to say: to Prometheus, an empty label is none."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, ascending, in the family's unit and without ``+Inf``."""

    def series_names(self) -> tuple[str, ...]:
        """Return the names that queries use: three for a histogram, one for any other kind."""
        if self.kind == "histogram":
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)

    def metric(self, rows: Rows) -> Metric:
        """Return a gauge or counter with one sample for each row."""
        make = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}[self.kind]
        metric: GaugeMetricFamily | CounterMetricFamily = make(self.name, self.help, labels=self.labels)
        for values, number in rows:
            labels = zip(self.labels, values, strict=True)
            said = {label: value for label, value in labels if value or label not in self.optional}
            metric.add_sample(self.name, said, number)
        return metric

    def histogram(self, rows: Iterable[tuple[Sequence[str], Sequence[float], float]]) -> Metric:
        """Return a histogram. A row has the label values, the cumulative counts and the sum of all observations.

        There is one count for each of ``buckets`` and one for ``+Inf``.
        """
        metric = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        bounds = [*map(str, self.buckets), "+Inf"]
        for values, counts, total in rows:
            metric.add_metric(values, list(zip(bounds, counts, strict=True)), total)
        return metric


def gauge(name: str, labels: str, meaning: str, **values: Iterable[str]) -> MetricFamily:
    """Declare a gauge; ``name`` without prefix, ``labels`` separated by blanks, with ``?`` if optional."""
    return _declare("gauge", name, labels, meaning, values)


def counter(name: str, labels: str, meaning: str, **values: Iterable[str]) -> MetricFamily:
    """Declare a counter; ``name`` without prefix and with ``_total``, ``labels`` separated by blanks."""
    return _declare("counter", name, labels, meaning, values)


def histogram(
    name: str, labels: str, meaning: str, *, buckets: tuple[float, ...], **values: Iterable[str]
) -> MetricFamily:
    """Declare a classic histogram; ``name`` without prefix, ``labels`` without ``le``, separated by blanks."""
    return _declare("histogram", name, labels, meaning, values, buckets=buckets)


def declared_in(module: Mapping[str, object]) -> tuple[MetricFamily, ...]:
    """Return all families among a module's names, in the order of their declaration.

    A list by hand would be a second place to forget a family in.
    """
    return tuple(each for each in module.values() if isinstance(each, MetricFamily))


def _declare(
    kind: Kind,
    name: str,
    labels: str,
    meaning: str,
    values: Mapping[str, Iterable[str]],
    *,
    buckets: tuple[float, ...] = (),
) -> MetricFamily:
    return MetricFamily(
        name=PREFIX + name,
        kind=kind,
        labels=tuple(label.rstrip("?") for label in labels.split()),
        help=meaning,
        optional=frozenset(label.rstrip("?") for label in labels.split() if label.endswith("?")),
        values={label: tuple(allowed) for label, allowed in values.items()},
        buckets=buckets,
    )


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
