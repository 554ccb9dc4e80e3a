"""A stand-in for dcgm-exporter and node_exporter on one port: their names and labels, and values that grow.

The names are those of dcgm-exporter's default counters (etc/default-counters.csv in its repository) and of
node_exporter's collectors cpu, meminfo, netdev and uname.
"""

import itertools
from collections.abc import Iterable
from contextlib import AbstractContextManager

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tests.support.catalogue_exporter import exporter

_GPU_LABELS = ("gpu", "UUID", "Hostname")


class _HardwareCollector(Collector):
    def __init__(self, node: str, uuid: str) -> None:
        self._node, self._gpu = node, ("0", uuid, node)
        self._scrapes = itertools.count(1)

    def collect(self) -> Iterable[Metric]:
        scrapes = next(self._scrapes)
        for name, value in (("DCGM_FI_DEV_GPU_TEMP", 60.0), ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.4)):
            gpu = GaugeMetricFamily(name, name, labels=_GPU_LABELS)
            gpu.add_metric(self._gpu, value)
            yield gpu
        uname = GaugeMetricFamily("node_uname_info", "uname", labels=("nodename",))
        uname.add_metric((self._node,), 1)
        yield uname
        yield GaugeMetricFamily("node_memory_MemAvailable_bytes", "memory", value=2**30)
        cpu = CounterMetricFamily("node_cpu_seconds", "cpu", labels=("cpu", "mode"))
        cpu.add_metric(("0", "idle"), 0.1 * scrapes)
        yield cpu
        for way in ("receive", "transmit"):
            network = CounterMetricFamily(f"node_network_{way}_bytes", "network", labels=("device",))
            network.add_metric(("eth0",), 1000.0 * scrapes)
            yield network


def hardware_exporter(node: str, uuid: str) -> AbstractContextManager[str]:
    """Serve the metrics of one node with one GPU on loopback; yield its ``host:port``."""
    return exporter(_HardwareCollector(node, uuid))
