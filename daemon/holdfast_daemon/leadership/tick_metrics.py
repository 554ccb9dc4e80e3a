"""Metrics of the loops: durations of ticks and detectors, and their failures."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Histogram
from prometheus_client.registry import CollectorRegistry

from holdfast_base.metric_family import MetricFamily
from holdfast_daemon.metrics import self_families as declared

log = logging.getLogger(__name__)

TICK_MS = 100
"""Time between two ticks."""

LATE_SHARE = 0.5
"""Share of the lease above which a tick is late. A tick as long as the lease would need a thread to keep it."""
_QUIET_S = 60.0
"""Least time between two lines about late ticks of one run."""


class TickPace:
    """How long the ticks of one run take, with reading and writing. The times are those of the leader's clock."""

    def __init__(self, run: str, lease_s: float) -> None:
        self._run = run
        self._lease_s = lease_s
        self._begun_s = 0.0
        self._logged_s: float | None = None
        self.late_total = 0
        self.finished_s = 0.0
        """Time at which the last tick has ended; 0: there was none."""

    def begin(self, now_s: float) -> None:
        """Note that a tick begins."""
        self._begun_s = now_s

    def length_s(self, now_s: float) -> float:
        """Return how long the tick has taken so far."""
        return now_s - self._begun_s

    def finish(self, now_s: float, ranks: int) -> None:
        """Note that the tick has ended. A late one is counted, and logged if the last line is some time ago."""
        self.finished_s = now_s
        took_s = self.length_s(now_s)
        if took_s <= LATE_SHARE * self._lease_s:
            return
        self.late_total += 1
        if self._logged_s is None or now_s - self._logged_s >= _QUIET_S:
            self._logged_s = now_s
            log.warning(
                "run %s: a tick over %d ranks took %.1f s, and its lease lasts %g s: faults are found that late: "
                "give the daemon a free core, fewer runs, or a longer --lease",
                self._run,
                ranks,
                took_s,
                self._lease_s,
            )


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
