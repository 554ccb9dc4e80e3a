"""Exports every metric of the catalogue with values that change from scrape to scrape."""

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dashboards.catalogue import CATALOGUE
from dashboards.metric import Component
from dashboards.metric import Metric as CatalogueMetric

RUN = "demo"

_OPEN_LABEL_VALUES = {
    "kind": ("kill", "slow"),
    "run": (RUN,),
    "rank": ("0", "1"),
    "local_rank": ("0",),
    "node": ("node-a",),
    "gpu": ("0",),
    "UUID": ("GPU-0",),
    "group": ("default", "mesh_tp"),
    "cause": ("dead_rank",),
    "detector": ("dead_rank", "loss_spike"),
    "version": (version("holdfast-torch"),),
}
_ONE_HOT = {"holdfast_run_state": "running"}


class CatalogueCollector(Collector):
    """Yields every metric of one component; each scrape counts on by one."""

    def __init__(self, component: Component) -> None:
        self._metrics = CATALOGUE[component]
        self._scrapes = itertools.count(1)

    def collect(self) -> Iterable[Metric]:
        scrapes = next(self._scrapes)
        for metric in self._metrics:
            yield _family(metric, scrapes)


def _family(metric: CatalogueMetric, scrapes: int) -> Metric:
    if metric.kind == "counter":
        counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for values in _label_values(metric):
            counter.add_metric(values, scrapes * 0.5)
        return counter
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for values in _label_values(metric):
            buckets = [("0.1", scrapes), ("1.0", 2 * scrapes), ("+Inf", 2 * scrapes)]
            histogram.add_metric(values, buckets, sum_value=scrapes * 0.6)
        return histogram
    gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for values in _label_values(metric):
        gauge.add_metric(values, _gauge_value(metric, values, scrapes))
    return gauge


def _label_values(metric: CatalogueMetric) -> list[tuple[str, ...]]:
    return list(itertools.product(*(metric.values.get(label) or _OPEN_LABEL_VALUES[label] for label in metric.labels)))


def _gauge_value(metric: CatalogueMetric, values: tuple[str, ...], scrapes: int) -> float:
    if metric.name in _ONE_HOT:
        return float(_ONE_HOT[metric.name] in values)
    if metric.name.endswith("_timestamp_seconds"):
        return time.time() - 1
    if metric.name.endswith(("_info", "_up", "_leader", "_success")):
        return 1
    if metric.name == "holdfast_incident_open":
        return 0
    return float(scrapes)


@contextmanager
def catalogue_exporter(component: Component) -> Iterator[str]:
    """Serve the catalogue of ``component`` on loopback; yield its ``host:port``."""
    registry = CollectorRegistry()
    registry.register(CatalogueCollector(component))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
