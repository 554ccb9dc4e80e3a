"""Own time of a step and utilisation of the GPU of each rank, from the differences between two looks."""

import threading
import time
from collections.abc import Callable, Mapping

from holdfast_core.model import CoreState, ranks_of
from holdfast_core.reading.rank_means import RecentMeans, Sample, gpu_use_sum, own_time_sum
from holdfast_proto.v1 import store_pb2 as store

MOST_RANKS = 64
"""Most ranks of :class:`SingleRankTimes`: those that were asked for last."""

_Sampler = Callable[[store.RankState], Sample]


class OwnStepTimes:
    """Remembers sums of some seconds ago. Use one object for one quantity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent = RecentMeans()

    def times_s(self, state: CoreState) -> dict[int, float]:
        """Return rank -> seconds that it needs for itself in a step; ranks whose time is not known yet are left out.

        It is GPU time where that can be separated from waiting, else the time in which the training thread on a CPU
        worked, or slept outside of calls with other ranks.
        """
        return {rank: _two_digits(mean) for rank, mean in self._means_of_all(state, own_time_sum).items()}

    def time_s(self, generation: int, rank: store.RankState) -> float | None:
        """Return the same of one rank, for an object that is used for this rank alone; None: it is not known yet."""
        mean = self._means(generation, {rank.rank: rank}, own_time_sum).get(rank.rank)
        return None if mean is None else _two_digits(mean)

    def utilisations(self, state: CoreState) -> dict[int, float]:
        """Return rank -> percentage of time in which a kernel ran on its GPU, in steps of five."""
        return {rank: 5.0 * round(20.0 * mean) for rank, mean in self._means_of_all(state, gpu_use_sum).items()}

    def _means_of_all(self, state: CoreState, sample: _Sampler) -> dict[int, float]:
        generation = state.record.generation
        return self._means(generation, ranks_of(state.nodes, generation), sample)

    def _means(self, generation: int, ranks: Mapping[int, store.RankState], sample: _Sampler) -> dict[int, float]:
        found = {number: got for number, rank in ranks.items() if (got := sample(rank)).parts}
        return self._recent.means(generation, found, self._clock())


class SingleRankTimes:
    """Own times of the ranks whose pages are open. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[tuple[str, int], OwnStepTimes] = {}

    def time_s(self, run: str, generation: int, rank: store.RankState) -> float | None:
        """Return the seconds that a rank needs for itself in a step; None: they are not known yet."""
        with self._lock:
            times = self._times.pop((run, rank.rank), None) or OwnStepTimes()
            self._times[run, rank.rank] = times
            while len(self._times) > MOST_RANKS:
                del self._times[next(iter(self._times))]
            return times.time_s(generation, rank)


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
