"""Metrics in the text that Prometheus scrapes."""

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def samples(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a series, by the values of ``labels``. They are empty if it is not exported."""
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in _series(text, name)}


def total(text: str, name: str, **labels: str) -> float:
    """Return the sum of a series' samples with these labels."""
    return sum(sample.value for sample in _series(text, name) if labels.items() <= sample.labels.items())


def _series(text: str, name: str) -> list[Sample]:
    families = text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples if sample.name == name]
