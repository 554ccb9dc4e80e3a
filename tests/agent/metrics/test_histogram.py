from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from holdfast_agent.metrics.histogram import Histogram


class OneFamily(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]


def scraped(histogram: Histogram) -> dict[str, float]:
    """What Prometheus would see, by sample name and bound."""
    registry = CollectorRegistry()
    registry.register(OneFamily(histogram.family("h", "Text.", {"run": "r"})))
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    assert family.type == "histogram"
    assert {sample.labels["run"] for sample in family.samples} == {"r"}
    return {sample.name + sample.labels.get("le", ""): sample.value for sample in family.samples}


def test_an_untouched_histogram_is_all_zeros() -> None:
    assert scraped(Histogram((0.5, 1.0))) == {
        "h_bucket0.5": 0,
        "h_bucket1.0": 0,
        "h_bucket+Inf": 0,
        "h_count": 0,
        "h_sum": 0,
    }


def test_buckets_are_cumulative_and_hold_their_upper_bound() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.25, 0.5, 0.75, 8.0):
        histogram.observe(value)
    assert scraped(histogram) == {
        "h_bucket0.5": 2,
        "h_bucket1.0": 3,
        "h_bucket+Inf": 4,
        "h_count": 4,
        "h_sum": 9.5,
    }
