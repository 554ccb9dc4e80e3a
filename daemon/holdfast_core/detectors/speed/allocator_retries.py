"""A device's memory is nearly full, or in pieces: allocations succeed only after the allocator has emptied its cache.

Counters of all ranks are read once a minute. A rank is reported when its retries rose in three of the last ten
minutes: a single retry, as when a first evaluation needs room, is healthy. A rank that ran out of memory and continued
is reported immediately. The episode of a rank ends after ten minutes without either.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_core.detectors.view import View
from holdfast_proto.v1 import store_pb2 as store

SAMPLE_EVERY_S = 60.0
RISEN_SAMPLES, OF_SAMPLES = 3, 10


@dataclass(frozen=True)
class _Counts:
    """Of one rank so far."""

    retries: int
    ooms: int


_NONE = _Counts(0, 0)


@dataclass(frozen=True)
class AllocatorRetries(Detector):
    """Reports once in an episode of each rank."""

    name: ClassVar[str] = "allocator_retries"

    _sampled_unix_s: float | None = None
    _counts: Mapping[int, _Counts] = field(default_factory=dict)
    """At the newest sample."""
    _risen: Mapping[int, tuple[bool, ...]] = field(default_factory=dict)
    """Of ranks with a rise in the last ten samples: whether there was one, in each."""
    _reported: frozenset[int] = frozenset()

    def see_tick(self, view: View) -> DetectorResult:
        """Take a sample when one is due."""
        if self._sampled_unix_s is not None and view.now - self._sampled_unix_s < SAMPLE_EVERY_S:
            return DetectorResult(self)
        counts = {
            number: _Counts(rank.memory.alloc_retries, rank.memory.ooms)
            for number, rank in view.ranks.items()
            if rank.memory.reserved_bytes  # else an agent that has just started, and has not heard from the rank
        }
        grown = {number: count for number, count in counts.items() if count != self._counts.get(number, _NONE)}
        risen = self._remember(grown)
        out = [number for number, count in grown.items() if count.ooms > self._counts.get(number, _NONE).ooms]
        often = [number for number, samples in risen.items() if sum(samples) >= RISEN_SAMPLES]
        reported = self._reported.intersection(risen)
        culprits = [number for number in dict.fromkeys([*sorted(out), *sorted(often)]) if number not in reported]
        watch = AllocatorRetries(view.now, {**self._counts, **counts}, risen, reported.union(culprits))
        return DetectorResult(watch, findings_of(_verdict(view, culprits, out)) if culprits else ())

    def _remember(self, grown: Collection[int]) -> dict[int, tuple[bool, ...]]:
        ranks = {*self._risen, *grown}
        risen = {rank: (*self._risen.get(rank, ()), rank in grown)[-OF_SAMPLES:] for rank in ranks}
        return {rank: samples for rank, samples in risen.items() if any(samples)}

    def restarted(self, _after_step: int) -> Self:
        """Begin again: processes count from 0."""
        return type(self)()


def _verdict(view: View, culprits: Sequence[int], out: Collection[int]) -> store.Verdict:
    first = view.ranks[culprits[0]]
    detail = store.AllocatorDetail(ran_out=first.rank in out, minutes=RISEN_SAMPLES, of_minutes=OF_SAMPLES)
    return store.Verdict(
        kind=store.VERDICT_KIND_ALLOCATOR_RETRIES,
        culprits=culprits,
        step=first.progress.step,
        confidence_ratio=1.0,
        allocator=detail,
    )
