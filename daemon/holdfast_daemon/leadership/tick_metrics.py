"""Metrics of the loops: durations of ticks and detectors, and their failures."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Histogram
from prometheus_client.registry import CollectorRegistry

from holdfast_base.metric_family import MetricFamily
from holdfast_daemon.metrics import self_families as declared

TICK_MS = 100
"""Time between two ticks."""


class TickMetrics:
    """Counts and times the ticks of all runs, and what else has no run of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations = Histogram(
            declared.TICK_DURATION.name,
            declared.TICK_DURATION.help,
            buckets=declared.TICK_DURATION.buckets,
            registry=registry,
        )

        def counter(family: MetricFamily) -> Counter:
            return Counter(family.name, family.help, family.labels, registry=registry)

        self._slow = counter(declared.SLOW_TICKS)
        self._failed = counter(declared.FAILED_TICKS)
        self._shells_begun = counter(declared.RUN_SHELL_ATTEMPTS)
        self._shells_failed = counter(declared.RUN_SHELL_FAILURES)
        self._names_refused = counter(declared.RUN_NAMES_REFUSED)
        self._looks = counter(declared.DETECTOR_ATTEMPTS)
        self._seconds = counter(declared.DETECTOR_TIME)
        self._failures = counter(declared.DETECTOR_FAILURES)
        for detector in declared.DETECTORS:
            for each in (self._looks, self._seconds, self._failures):
                each.labels(detector)

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Time one tick."""
        started_s = time.perf_counter()
        yield
        self.observe(time.perf_counter() - started_s)

    def observe(self, duration_s: float) -> None:
        """Count one tick."""
        self._durations.observe(duration_s)
        if duration_s > TICK_MS / 1000:
            self._slow.inc()

    def tick_failed(self) -> None:
        """Count a tick that raised."""
        self._failed.inc()

    def shell_begun(self) -> None:
        """Count an attempt to lead a run, or to stand by."""
        self._shells_begun.inc()

    def shell_failed(self) -> None:
        """Count a run whose shell ended with an exception."""
        self._shells_failed.inc()

    def run_name_refused(self) -> None:
        """Count a name that cannot be the name of a run."""
        self._names_refused.inc()

    @contextmanager
    def detector(self, name: str) -> Iterator[None]:
        """Time one look of a detector."""
        self._looks.labels(name).inc()
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self._seconds.labels(name).inc(time.perf_counter() - started_s)

    def detector_failed(self, name: str) -> None:
        """Count a look that ended with an exception."""
        self._failures.labels(name).inc()

    def tick_summary(self) -> dict[str, float | None]:
        """Return the number of ticks, of failed ones, and bounds that half and 99 % of the durations do not exceed."""
        buckets = [
            (float(sample.labels["le"]), sample.value)
            for metric in self._durations.collect()
            for sample in metric.samples
            if sample.name.endswith("_bucket")
        ]
        count = buckets[-1][1] if buckets else 0.0

        def bound_s(share: float) -> float | None:
            found = next((bound for bound, below in buckets if count and below >= share * count), math.inf)
            return found if math.isfinite(found) else None

        failed = _by_label(self._failed).get("", 0.0)
        return {"count": count, "failed": failed, "p50_s": bound_s(0.5), "p99_s": bound_s(0.99)}

    def detector_summary(self) -> list[dict[str, str | float]]:
        """Return the name of each detector, the seconds that it has used, and how often it has failed."""
        seconds, failures = _by_label(self._seconds), _by_label(self._failures)
        return [
            {"name": name, "seconds": seconds[name], "failures": failures.get(name, 0.0)} for name in sorted(seconds)
        ]


def _by_label(counter: Counter) -> dict[str, float]:
    """Return the values of a counter by its only label; "": it has none."""
    return {
        next(iter(sample.labels.values()), ""): sample.value
        for metric in counter.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
