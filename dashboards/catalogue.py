"""All metric families of all components, and whether a real ``/metrics`` text agrees with them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from holdfast_agent.metrics import families as agent
from holdfast_base.metric_family import PREFIX, MetricFamily
from holdfast_checkpoint.guard import guard_metrics as guard
from holdfast_daemon.metrics import run_families, self_families

Component = Literal["agent", "daemon", "guard"]

SECTIONS: Mapping[str, tuple[MetricFamily, ...]] = {
    "Agent": agent.FAMILIES,
    "Daemon: the run": run_families.FAMILIES,
    "Daemon: itself": self_families.FAMILIES,
    "Guard": guard.FAMILIES,
}
"""Families by their section of docs/metrics.md."""

CATALOGUE: Mapping[Component, tuple[MetricFamily, ...]] = {
    "agent": agent.FAMILIES,
    "daemon": run_families.FAMILIES + self_families.FAMILIES,
    "guard": guard.FAMILIES,
}


def series_names() -> frozenset[str]:
    """Return every name that a query may use."""
    return frozenset(name for families in CATALOGUE.values() for family in families for name in family.series_names())


def fixed_values(label: str) -> frozenset[str]:
    """Return all values that ``label`` takes in families where it has a fixed set; empty if it has none."""
    families = (family for component in CATALOGUE.values() for family in component)
    return frozenset(value for family in families for value in family.values.get(label, ()))


def differences(component: Component, text: str) -> list[str]:
    """Compare what ``component`` exports (its ``/metrics`` text) with the families that it declares.

    Returns one line per difference: a family that is missing or unknown, a wrong type, help, labels or buckets, or a
    label value outside the fixed set. Families without our prefix come from client_python and are passed over.
    """
    exported = {_name(metric): metric for metric in text_string_to_metric_families(text) if _is_ours(metric)}
    expected = {family.name: family for family in CATALOGUE[component]}
    found = [f"{name}: missing" for name in expected.keys() - exported.keys()]
    found += [f"{name}: not in the catalogue" for name in exported.keys() - expected.keys()]
    for name in expected.keys() & exported.keys():
        found += _family_differences(expected[name], exported[name])
    return sorted(found)


def _is_ours(metric: Metric) -> bool:
    # client_python adds the creation time of every counter and histogram as a gauge of its own.
    return metric.name.startswith(PREFIX) and not metric.name.endswith("_created")


def _name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def _family_differences(family: MetricFamily, metric: Metric) -> Iterator[str]:
    if metric.type != family.kind:
        yield f"{family.name}: type is {metric.type}, should be {family.kind}"
        return
    if metric.documentation != family.help:
        yield f"{family.name}: help is {metric.documentation!r}, should be {family.help!r}"
    samples = [sample.labels for sample in metric.samples if not sample.name.endswith("_created")]
    yield from _label_differences(
        family, [{label: labels[label] for label in labels if label != "le"} for labels in samples]
    )
    bounds = {labels["le"] for labels in samples if "le" in labels}
    if bounds and bounds != {*map(str, family.buckets), "+Inf"}:
        yield f"{family.name}: buckets are {sorted(bounds)}, should be {list(family.buckets)}"


def _label_differences(family: MetricFamily, label_sets: Iterable[Mapping[str, str]]) -> Iterator[str]:
    for labels in {tuple(sorted(labels)) for labels in label_sets}:
        if not set(family.labels) - family.optional <= set(labels) <= set(family.labels):
            yield f"{family.name}: labels are {list(labels)}, should be {sorted(family.labels)}"
    for label, allowed in family.values.items():
        unknown = {labels[label] for labels in label_sets if label in labels} - set(allowed)
        if unknown:
            yield f"{family.name}: {label} is {sorted(unknown)}, should be one of {list(allowed)}"
