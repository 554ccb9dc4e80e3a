"""Own time of a step and utilisation of the GPU of each rank, from the differences between two looks."""

import time
from collections.abc import Callable

from holdfast_daemon.core.detectors.speed.own_time import is_measured
from holdfast_daemon.core.model import CoreState, ranks_of
from holdfast_proto.v1 import store_pb2 as store

WINDOW_S = 10.0
"""Shortest time over which values are averaged, once the first look is that old."""

Sample = tuple[float, float]
"""A sum, and the number of its parts."""


class OwnStepTimes:
    """Remembers sums of some seconds ago. Use one object for one quantity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._generation = -1
        self._base: dict[int, Sample] = {}
        self._next_base: dict[int, Sample] = {}
        self._based_s = 0.0

    def times_s(self, state: CoreState) -> dict[int, float]:
        """Return rank -> seconds that it needs for itself in a step; ranks whose time is not known yet are left out.

        It is time of the GPU where that can be told from waiting, else the time in which the training thread on a CPU
        worked, or slept outside of calls with other ranks.
        """
        return {rank: _two_digits(mean) for rank, mean in self._means(state, _own_time).items()}

    def utilisations(self, state: CoreState) -> dict[int, float]:
        """Return rank -> percentage of time in which a kernel ran on its GPU, in steps of five."""
        return {rank: 5.0 * round(20.0 * mean) for rank, mean in self._means(state, _gpu_samples).items()}

    def _means(self, state: CoreState, sample: Callable[[store.RankState], Sample | None]) -> dict[int, float]:
        now_s = self._clock()
        ranks = ranks_of(state.nodes, state.record.generation)
        found = {number: got for number, rank in ranks.items() if (got := sample(rank)) is not None}
        if state.record.generation != self._generation or not self._base:
            self._generation, self._base, self._next_base, self._based_s = state.record.generation, found, found, now_s
        elif now_s - self._based_s > WINDOW_S:
            self._base, self._next_base, self._based_s = self._next_base, found, now_s
        means = {}
        for number, (total, count) in found.items():
            total_before, count_before = self._base.get(number, (0.0, 0.0))
            if count < count_before:  # another process has begun to count
                total_before = count_before = 0.0
            parts = count - count_before
            if parts > 0 and total >= total_before:
                means[number] = (total - total_before) / parts
            elif count > 0:  # nothing new since then: the mean of all that there is
                means[number] = total / count
        return means


def _own_time(rank: store.RankState) -> Sample | None:
    if rank.device_steps:
        return rank.device_own_s, rank.device_steps
    if not (is_measured(rank) and rank.steps_done):
        return None
    return rank.busy_s + rank.own_wait_s, rank.steps_done


def _gpu_samples(rank: store.RankState) -> Sample | None:
    gpu = rank.gpu
    return (gpu.utilization_sum, gpu.utilization_samples) if gpu.utilization_samples else None


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
