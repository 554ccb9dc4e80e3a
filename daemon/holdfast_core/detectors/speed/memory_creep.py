"""Memory that grows steadily until none is left.

All ranks' reserved memory is sampled every 10 s, or every 4 steps where those are slower than 1 s in all. The least of
four samples in a row is a block: caches that fill and empty leave it alone. Over the newest 16 blocks m_1 ... m_16

    slope = Theil-Sen slope: the median of (m_j - m_i) / (j - i)
    rise  = slope x 15

memory creeps if

* the rise is more than 2 % of the limit,
* over 80 % of the differences m_(i+1) - m_i are positive,
* from each quarter of the blocks to the next their median rises by at least half of what the slope makes of it, and at
  last by at least three quarters of what it did at first, and
* the last block exceeds all that the rank ever held before.

So a step up at an evaluation, growth that ends with the warm-up and a cache that is emptied now and then do not count.
It is reported if the limit is less than 24 h away:

    hours left = (limit - newest sample) / slope per hour
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_core.detectors.numbers.sorted_window import theil_sen_slope
from holdfast_core.detectors.view import View
from holdfast_proto.v1 import store_pb2 as store

SAMPLE_EVERY_S = 10.0
SAMPLE_EVERY_STEPS, SAMPLE_NO_SOONER_S = 4, 1.0
BLOCK_SAMPLES, BLOCKS = 4, 16
"""64 samples, which span 10 minutes or 256 steps."""

WARM_UP_STEPS = 10
"""Of a generation: not sampled."""

_RISE_LIMIT_RATIO = 0.02
_RISING_RATIO = 0.8
_QUARTER_RATIO, _LAST_TO_FIRST_RATIO = 0.5, 0.75
_HOURS_LIMIT = 24.0
_JUDGED_RANKS = 64
"""Those whose memory rose most: what all of a large run's ranks do, these show."""


@dataclass(frozen=True)
class _Block:
    """Least reserved bytes of each rank, in ascending order of rank, over some samples."""

    began_unix_s: float
    samples: int
    least_bytes: tuple[int, ...]


@dataclass(frozen=True)
class _Creep:
    """How fast one rank's memory grows, and how soon it is used up."""

    bytes_per_hour: float
    limit_bytes: int
    hours_left: float


@dataclass(frozen=True)
class MemoryCreep(Detector):
    """Reports once of each rank in a generation."""

    name: ClassVar[str] = "memory_creep"

    _ranks: tuple[int, ...] = ()
    _sampled_unix_s: float = 0.0
    _sampled_steps_done: int = 0
    _blocks: tuple[_Block, ...] = ()
    """The newest 16 that are complete."""
    _open: _Block | None = None
    _peak_bytes: tuple[int, ...] = ()
    """Most that each rank held in a block before ``_blocks``."""
    _reported: frozenset[int] = frozenset()

    def see_tick(self, view: View) -> DetectorResult:
        """Take a sample when one is due; judge at the end of a block."""
        first = next(iter(view.ranks.values()), None)
        if first is None or not self._is_due(view.now, first.steps_done):
            return DetectorResult(self)
        watch = replace(self, _sampled_unix_s=view.now, _sampled_steps_done=first.steps_done)._sample(view)
        if watch._open is not None or len(watch._blocks) < BLOCKS:
            return DetectorResult(watch)
        creeping = dict(watch._creeping(view))
        if not creeping:
            return DetectorResult(watch)
        # A new window, so that ranks that follow one by one are reported together.
        reported = replace(watch, _blocks=(), _reported=self._reported.union(creeping))
        return DetectorResult(reported, findings_of(_verdict(view, creeping)))

    def restarted(self, _after_step: int) -> Self:
        """Begin again."""
        return type(self)()

    def _is_due(self, now: float, steps_done: int) -> bool:
        if steps_done < WARM_UP_STEPS:
            return False
        elapsed_s, steps = now - self._sampled_unix_s, steps_done - self._sampled_steps_done
        return elapsed_s >= SAMPLE_EVERY_S or (steps >= SAMPLE_EVERY_STEPS and elapsed_s >= SAMPLE_NO_SOONER_S)

    def _sample(self, view: View) -> "MemoryCreep":
        ranks = tuple(sorted(view.ranks))
        reserved = tuple(view.ranks[rank].memory.reserved_bytes for rank in ranks)
        known = self if ranks == self._ranks else MemoryCreep(ranks, self._sampled_unix_s, self._sampled_steps_done)
        block = known._open
        if block is None:
            return replace(known, _open=_Block(view.now, 1, reserved))
        block = _Block(block.began_unix_s, block.samples + 1, tuple(map(min, block.least_bytes, reserved)))
        return known._close(block) if block.samples == BLOCK_SAMPLES else replace(known, _open=block)

    def _close(self, block: _Block) -> "MemoryCreep":
        peak_bytes = self._peak_bytes or (0,) * len(self._ranks)
        if len(self._blocks) == BLOCKS:
            peak_bytes = tuple(map(max, peak_bytes, self._blocks[0].least_bytes))
        return replace(self, _open=None, _blocks=(*self._blocks, block)[-BLOCKS:], _peak_bytes=peak_bytes)

    def _creeping(self, view: View) -> Iterator[tuple[int, _Creep]]:
        oldest, newest = self._blocks[0].least_bytes, self._blocks[-1].least_bytes
        risen = [index for index in range(len(newest)) if newest[index] > max(oldest[index], self._peak_bytes[index])]
        hours = (self._blocks[-1].began_unix_s - self._blocks[0].began_unix_s) / 3600
        for index in heapq.nlargest(_JUDGED_RANKS, risen, key=lambda index: newest[index] - oldest[index]):
            rank = view.ranks[self._ranks[index]]
            creep = _creep([block.least_bytes[index] for block in self._blocks], rank, hours)
            if creep is not None and rank.rank not in self._reported:
                yield rank.rank, creep


def _creep(blocks: list[int], rank: store.RankState, hours: float) -> _Creep | None:
    """Judge one rank's blocks. ``hours``: from the first of them to the last."""
    limit_bytes, reserved_bytes = rank.memory.limit_bytes, rank.memory.reserved_bytes
    slope = theil_sen_slope(blocks)
    rise = slope * (len(blocks) - 1)
    if not limit_bytes or rise <= _RISE_LIMIT_RATIO * limit_bytes:
        return None
    if not _rises_throughout(blocks, slope):
        return None
    hours_left = (limit_bytes - reserved_bytes) / (rise / hours)
    return _Creep(rise / hours, limit_bytes, max(0.0, hours_left)) if hours_left < _HOURS_LIMIT else None


def _rises_throughout(blocks: list[int], slope: float) -> bool:
    differences = [later - earlier for earlier, later in pairwise(blocks)]
    if sum(difference > 0 for difference in differences) <= _RISING_RATIO * len(differences):
        return False
    quarter = len(blocks) // 4
    middles = [median(blocks[start : start + quarter]) for start in range(0, len(blocks), quarter)]
    rises = [later - earlier for earlier, later in pairwise(middles)]
    return min(rises) >= _QUARTER_RATIO * slope * quarter and rises[-1] >= _LAST_TO_FIRST_RATIO * rises[0]


def _verdict(view: View, creeping: Mapping[int, _Creep]) -> store.Verdict:
    culprits = sorted(creeping, key=lambda rank: (creeping[rank].hours_left, rank))
    first = creeping[culprits[0]]
    detail = store.MemoryDetail(
        bytes_per_hour=first.bytes_per_hour, limit_bytes=first.limit_bytes, hours_left=first.hours_left
    )
    return store.Verdict(
        kind=store.VERDICT_KIND_MEMORY_CREEP,
        culprits=culprits,
        step=view.ranks[culprits[0]].progress.step,
        confidence_ratio=0.9,
        memory=detail,
    )
