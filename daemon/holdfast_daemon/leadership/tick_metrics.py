"""Metrics of the loops: durations of ticks and detectors, and their failures."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Histogram
from prometheus_client.registry import CollectorRegistry

from holdfast_daemon.core.detectors import registry as detectors

TICK_MS = 100
"""Time between two ticks."""

TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class TickMetrics:
    """Counts and times the ticks of all runs, and what else has no run of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations = Histogram(
            "holdfast_coordinator_tick_duration_seconds",
            "Duration of one tick of a run's core.",
            buckets=TICK_BUCKETS_S,
            registry=registry,
        )
        self._slow = Counter(
            "holdfast_coordinator_slow_ticks", "Ticks that took longer than the time between them.", registry=registry
        )
        self._failed = Counter(
            "holdfast_coordinator_failed_ticks",
            "Ticks of a run's core that raised: what they raised on was passed over.",
            registry=registry,
        )
        self._shells_begun = Counter(
            "holdfast_run_shell_attempts", "Times that leading a run, or standing by, was begun.", registry=registry
        )
        self._shells_failed = Counter(
            "holdfast_run_shell_failures", "Times that leading a run failed and was begun anew.", registry=registry
        )
        self._names_refused = Counter(
            "holdfast_run_names_refused",
            "Names in the list of runs that cannot be the name of a run, counted at each look.",
            registry=registry,
        )
        labels = ["detector"]
        self._looks = Counter(
            "holdfast_detector_attempts", "Times that a detector has looked.", labels, registry=registry
        )
        self._seconds = Counter("holdfast_detector_seconds", "Time that a detector took.", labels, registry=registry)
        self._failures = Counter(
            "holdfast_detector_failures", "Looks of a detector that failed.", labels, registry=registry
        )
        for detector in detectors.ALL:
            for counter in (self._looks, self._seconds, self._failures):
                counter.labels(detector.name)

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
