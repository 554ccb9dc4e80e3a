"""The catalogue of all metrics, and whether a real ``/metrics`` text agrees with it."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from dashboards.agent_metrics import AGENT_METRICS
from dashboards.daemon_metrics import DAEMON_METRICS
from dashboards.metric import PREFIX, Component, Metric

CATALOGUE: Mapping[Component, tuple[Metric, ...]] = {"agent": AGENT_METRICS, "daemon": DAEMON_METRICS}


def series_names() -> frozenset[str]:
    """Every name that a query may use."""
    return frozenset(name for metrics in CATALOGUE.values() for metric in metrics for name in metric.series_names())


def fixed_values(label: str) -> frozenset[str]:
    """All values that ``label`` takes in metrics where it has a fixed set; empty if it has none."""
    metrics = (metric for component in CATALOGUE.values() for metric in component)
    return frozenset(value for metric in metrics for value in metric.values.get(label, ()))


def differences(component: Component, text: str) -> list[str]:
    """Compare what ``component`` exports (its ``/metrics`` text) with the catalogue.

    Returns one line per difference: a metric that is missing or unknown, a wrong type, wrong labels, or a
    label value outside the fixed set. Metrics without our prefix are not ours to judge.
    """
    exported = {_name(family): family for family in text_string_to_metric_families(text) if _is_ours(family)}
    expected = {metric.name: metric for metric in CATALOGUE[component]}
    found = [f"{name}: missing" for name in expected.keys() - exported.keys()]
    found += [f"{name}: not in the catalogue" for name in exported.keys() - expected.keys()]
    for name in expected.keys() & exported.keys():
        found += _family_differences(expected[name], exported[name])
    return sorted(found)


def _is_ours(family: Family) -> bool:
    # client_python adds the creation time of every counter and histogram as a gauge of its own.
    return family.name.startswith(PREFIX) and not family.name.endswith("_created")


def _name(family: Family) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _family_differences(metric: Metric, family: Family) -> Iterator[str]:
    if family.type != metric.kind:
        yield f"{metric.name}: type is {family.type}, should be {metric.kind}"
        return
    label_sets = [
        {label: value for label, value in sample.labels.items() if label != "le"}
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    yield from _label_differences(metric, label_sets)


def _label_differences(metric: Metric, label_sets: Iterable[Mapping[str, str]]) -> Iterator[str]:
    for labels in {tuple(sorted(labels)) for labels in label_sets}:
        if set(labels) != set(metric.labels):
            yield f"{metric.name}: labels are {list(labels)}, should be {sorted(metric.labels)}"
    for label, allowed in metric.values.items():
        unknown = {labels[label] for labels in label_sets if label in labels} - set(allowed)
        if unknown:
            yield f"{metric.name}: {label} is {sorted(unknown)}, should be one of {list(allowed)}"
