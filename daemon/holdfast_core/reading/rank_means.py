"""Own time of a step and use of the GPU of each rank, as means of the newest seconds.

Ranks report sums since their start. A mean over a window is the difference between two looks at such a sum.
"""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast_core.detectors.speed.own_time import is_measured
from holdfast_proto.v1 import store_pb2 as store

WINDOW_S = 10.0
"""Shortest time over which values are averaged, once the first look is that old."""


class Sample(NamedTuple):
    """A sum, and the number of its parts."""

    total: float
    parts: int


UNKNOWN = Sample(0.0, 0)


def own_time_sum(rank: store.RankState) -> Sample:
    """Return the seconds that a rank needed for itself and its steps; UNKNOWN if they may be time that it waited.

    It is time of the GPU where that can be separated from waiting, else the time in which the training thread on a CPU
    worked, or slept outside of calls with other ranks.
    """
    if rank.device_steps:
        return Sample(rank.device_own_s, rank.device_steps)
    if not (is_measured(rank) and rank.steps_done):
        return UNKNOWN
    return Sample(rank.busy_s + rank.own_wait_s, rank.steps_done)


def gpu_use_sum(rank: store.RankState) -> Sample:
    """Return the shares of time in which a kernel ran on the rank's GPU, summed; UNKNOWN without a GPU."""
    gpu = rank.gpu
    return Sample(gpu.utilization_sum, gpu.utilization_samples) if gpu.utilization_samples else UNKNOWN


class RecentMeans:
    """Remembers the sums of some seconds ago. Use one object for one quantity."""

    def __init__(self) -> None:
        self._generation = -1
        self._base: Mapping[int, Sample] = {}
        self._next_base: Mapping[int, Sample] = {}
        self._based_s = 0.0

    def means(self, generation: int, sums: Mapping[int, Sample], now_s: float) -> dict[int, float]:
        """Return rank -> mean of its newest parts. ``sums``: rank -> its sum now, without ranks of which it is unknown.

        ``now_s``: of a clock that never goes back. The means cover one to two times WINDOW_S.
        """
        if generation != self._generation or not self._base:
            self._generation, self._base, self._next_base, self._based_s = generation, sums, sums, now_s
        elif now_s - self._based_s > WINDOW_S:
            self._base, self._next_base, self._based_s = self._next_base, sums, now_s
        base, means = self._base, {}
        for number, (total, count) in sums.items():
            total_before, count_before = base.get(number, UNKNOWN)
            if count < count_before:  # another process has begun to count
                total_before, count_before = UNKNOWN
            parts = count - count_before
            if parts > 0 and total >= total_before:
                means[number] = (total - total_before) / parts
            elif count > 0:  # nothing new since then: the mean of all that there is
                means[number] = total / count
        return means
