from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from holdfast_agent.metrics.histogram import Histogram
from holdfast_base.metric_family import histogram as declare

BUCKETS = (0.5, 1.0)


class OneFamily(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]


def scraped(histogram: Histogram) -> dict[str, float]:
    """Return what Prometheus would see, by sample name and bound."""
    registry = CollectorRegistry()
    family = declare("h", "run", "Text.", buckets=BUCKETS)
    registry.register(OneFamily(family.histogram([histogram.row("r")])))
    (shown,) = text_string_to_metric_families(generate_latest(registry).decode())
    assert shown.type == "histogram"
    assert {sample.labels["run"] for sample in shown.samples} == {"r"}
    return {sample.name + sample.labels.get("le", ""): sample.value for sample in shown.samples}


def test_an_untouched_histogram_is_all_zeros() -> None:
    assert scraped(Histogram(BUCKETS)) == {
        "holdfast_h_bucket0.5": 0,
        "holdfast_h_bucket1.0": 0,
        "holdfast_h_bucket+Inf": 0,
        "holdfast_h_count": 0,
        "holdfast_h_sum": 0,
    }


def test_buckets_are_cumulative_and_hold_their_upper_bound() -> None:
    histogram = Histogram(BUCKETS)
    for value in (0.25, 0.5, 0.75, 8.0):
        histogram.observe(value)
    assert scraped(histogram) == {
        "holdfast_h_bucket0.5": 2,
        "holdfast_h_bucket1.0": 3,
        "holdfast_h_bucket+Inf": 4,
        "holdfast_h_count": 4,
        "holdfast_h_sum": 9.5,
    }
