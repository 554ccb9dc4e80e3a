"""What the catalogue says about one metric."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PREFIX = "holdfast_"

Kind = Literal["gauge", "counter", "histogram"]
Component = Literal["agent", "daemon"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric family as ``/metrics`` shows it."""

    name: str
    """With prefix; a counter's ends in ``_total``."""
    kind: Kind
    labels: tuple[str, ...]
    help: str
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label -> all its values, for labels that take a fixed set. Each is exported from the start."""

    def series_names(self) -> tuple[str, ...]:
        """The names that queries use: a histogram has three."""
        if self.kind == "histogram":
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


def gauge(name: str, labels: str, meaning: str, **values: tuple[str, ...]) -> Metric:
    """A gauge; ``name`` without prefix, ``labels`` separated by blanks."""
    return Metric(name=PREFIX + name, kind="gauge", labels=tuple(labels.split()), help=meaning, values=values)


def counter(name: str, labels: str, meaning: str, **values: tuple[str, ...]) -> Metric:
    """A counter; ``name`` without prefix and with ``_total``, ``labels`` separated by blanks."""
    return Metric(name=PREFIX + name, kind="counter", labels=tuple(labels.split()), help=meaning, values=values)


def histogram(name: str, labels: str, meaning: str, **values: tuple[str, ...]) -> Metric:
    """A classic histogram; ``name`` without prefix, ``labels`` without ``le``, separated by blanks."""
    return Metric(name=PREFIX + name, kind="histogram", labels=tuple(labels.split()), help=meaning, values=values)
