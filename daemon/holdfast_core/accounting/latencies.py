"""How long detections and recoveries took, counted by length: however many there are, they take the same room."""

import math
from dataclasses import dataclass

LATENCY_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Lengths by which durations are counted, in seconds."""

_BOUNDS_S = (*LATENCY_BUCKETS_S, math.inf)


@dataclass(frozen=True)
class Latencies:
    """A cumulative histogram, as Prometheus wants it."""

    counts: tuple[int, ...] = (0,) * len(_BOUNDS_S)
    """Number of durations up to each length of :data:`LATENCY_BUCKETS_S`, then of all."""
    sum_s: float = 0.0

    def add(self, duration_s: float) -> "Latencies":
        """Return the latencies with one more."""
        pairs = zip(self.counts, _BOUNDS_S, strict=True)
        counted = tuple(count + (duration_s <= bound_s) for count, bound_s in pairs)
        return Latencies(counted, self.sum_s + duration_s)
