"""An exporter of every metric in the catalogue. Its values change from scrape to scrape."""

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dashboards.catalogue import CATALOGUE, Component
from holdfast_base.metric_family import MetricFamily

RUN, NODE, UUID = "demo", "node-a", "GPU-0"

_OPEN_LABEL_VALUES = {
    "kind": ("kill", "slow"),
    "run": (RUN,),
    "rank": ("0", "1"),
    "local_rank": ("0",),
    "node": (NODE,),
    "directory": ("/checkpoints",),
    "gpu": ("0",),
    "UUID": (UUID,),
    "xid": ("79",),
    "group": ("default", "mesh_tp"),
    "source": ("nccl",),
    "reason": ("it makes asynchronous calls",),
    "backend": ("nccl",),
    "channel": ("slack", "heartbeat"),
    "version": (version("holdfast-torch"),),
    "name": ("rewards/chosen",),
}
_ONE_HOT = {"holdfast_run_state": "running"}


class CatalogueCollector(Collector):
    """A collector that yields every family of one component. Each scrape adds one to the values."""

    def __init__(self, component: Component) -> None:
        self._families = CATALOGUE[component]
        self._scrapes = itertools.count(1)

    def collect(self) -> Iterable[Metric]:
        scrapes = next(self._scrapes)
        for family in self._families:
            yield _filled(family, scrapes)


def _filled(family: MetricFamily, scrapes: int) -> Metric:
    if family.kind == "histogram":
        counts = [scrapes, *(2 * scrapes for _ in family.buckets)]
        return family.histogram((values, counts, scrapes * 0.6) for values in _label_values(family))
    if family.kind == "counter":
        return family.metric((values, scrapes * 0.5) for values in _label_values(family))
    return family.metric((values, _gauge_value(family, values, scrapes)) for values in _label_values(family))


def _label_values(family: MetricFamily) -> Iterator[tuple[str, ...]]:
    return itertools.product(*(family.values.get(label) or _OPEN_LABEL_VALUES[label] for label in family.labels))


def _gauge_value(family: MetricFamily, values: tuple[str, ...], scrapes: int) -> float:
    if family.name in _ONE_HOT:
        return float(_ONE_HOT[family.name] in values)
    if family.name.endswith("_timestamp_seconds"):
        return time.time() - 1
    if family.name.endswith(("_info", "_up", "_leader", "_success")):
        return 1
    if family.name == "holdfast_incident_open":
        return 0
    return float(scrapes)


def catalogue_exporter(component: Component) -> AbstractContextManager[str]:
    """Serve the catalogue of ``component`` on loopback; yield its ``host:port``."""
    return exporter(CatalogueCollector(component))


@contextmanager
def exporter(collector: Collector) -> Iterator[str]:
    """Serve what a collector yields on loopback; yield its ``host:port``."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
