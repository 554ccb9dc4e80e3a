import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from holdfast_base.metric_family import Histogram, counter, declared_in, gauge, histogram


class OneMetric(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]


def exported(metric: Metric) -> list[str]:
    registry = CollectorRegistry()
    registry.register(OneMetric(metric))
    return generate_latest(registry).decode().splitlines()


def test_a_counter_is_exported_under_the_name_that_queries_use() -> None:
    family = counter("things_total", "run kind", "Things.", kind=("a", "b"))
    assert family.series_names() == ("holdfast_things_total",)
    assert exported(family.metric([(("r", "a"), 3), (("r", "b"), 0)])) == [
        "# HELP holdfast_things_total Things.",
        "# TYPE holdfast_things_total counter",
        'holdfast_things_total{kind="a",run="r"} 3.0',
        'holdfast_things_total{kind="b",run="r"} 0.0',
    ]


def test_a_family_without_rows_is_exported_with_its_type() -> None:
    family = gauge("size_bytes", "run", "Size.")
    assert exported(family.metric([])) == ["# HELP holdfast_size_bytes Size.", "# TYPE holdfast_size_bytes gauge"]


def test_a_histogram_has_the_declared_buckets() -> None:
    family = histogram("wait_seconds", "run", "Wait.", buckets=(0.5, 1.0))
    assert exported(family.histogram([(["r"], [1, 2, 4], 9.5)]))[1:] == [
        "# TYPE holdfast_wait_seconds histogram",
        'holdfast_wait_seconds_bucket{le="0.5",run="r"} 1.0',
        'holdfast_wait_seconds_bucket{le="1.0",run="r"} 2.0',
        'holdfast_wait_seconds_bucket{le="+Inf",run="r"} 4.0',
        'holdfast_wait_seconds_count{run="r"} 4.0',
        'holdfast_wait_seconds_sum{run="r"} 9.5',
    ]


def test_families_of_a_module_are_found_in_the_order_of_their_declaration() -> None:
    later, earlier = gauge("later", "", "Later."), gauge("earlier", "", "Earlier.")
    assert declared_in({"EARLIER": earlier, "BOUND": 3, "LATER": later}) == (earlier, later)


@pytest.mark.parametrize(
    ("observed", "values"),
    [
        ((), [0, 0, 0, 0, 0]),
        ((0.25, 0.5, 0.75, 8.0), [2, 3, 4, 4, 9.5]),
    ],
    ids=["untouched", "observed"],
)
def test_buckets_are_cumulative_and_hold_their_upper_bound(observed: tuple[float, ...], values: list[float]) -> None:
    seen = Histogram((0.5, 1.0))
    for value in observed:
        seen.observe(value)
    family = histogram("h", "run", "Text.", buckets=(0.5, 1.0))
    lines = exported(family.histogram([seen.row("r")]))[2:]
    assert [float(line.split()[-1]) for line in lines] == values
