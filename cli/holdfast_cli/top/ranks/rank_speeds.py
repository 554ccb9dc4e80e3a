"""How fast each rank is: its own time of a step, and the use of its GPU, as the console has them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from holdfast_core.reading.rank_means import RecentMeans, Sample
from holdfast_proto.v1.control_pb2 import RunStatus


@dataclass(frozen=True)
class RankSpeeds:
    """Means of the newest seconds, of the ranks of which they are known."""

    own_step_s: Mapping[int, float] = field(default_factory=dict)
    """Rank -> seconds that it needs for itself in a step."""
    gpu_use: Mapping[int, float] = field(default_factory=dict)
    """Rank -> share of time in which a kernel runs on its GPU."""

    @cached_property
    def median_step_s(self) -> float:
        """Median of the ranks' own times of a step; 0: none is known."""
        return statistics.median(self.own_step_s.values()) if self.own_step_s else 0.0


class SpeedWatch:
    """Makes means of the sums in one status after another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._own_times = RecentMeans()
        self._gpu_uses = RecentMeans()

    def see(self, status: RunStatus) -> RankSpeeds:
        """Take in a status, and return how fast its ranks are."""
        views = list(status.ranks)
        own = {view.rank: Sample(view.own_time_s, view.own_steps) for view in views if view.own_steps}
        used = {view.rank: Sample(view.gpu_use_sum, view.gpu_use_samples) for view in views if view.gpu_use_samples}
        now_s, generation = self._clock(), status.generation
        return RankSpeeds(self._own_times.means(generation, own, now_s), self._gpu_uses.means(generation, used, now_s))
