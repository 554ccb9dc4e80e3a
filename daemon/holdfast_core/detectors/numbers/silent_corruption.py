"""Finds ranks whose memory differs from that of ranks which must hold the same.

Ranks report hashes of parts of their parameters, taken at the end of a step. Some parts must be equal on all their
holders. Of others, Holdfast learns which ranks hold them alike: see learned_replicas.py.

Parts take turns, so that a fault is found when the turn of its part comes. Some ranks look more often than others: what
the few cannot decide may be decided when all look, so that this is waited for.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_core.detectors.numbers.learned_replicas import LearnedReplicas
from holdfast_core.detectors.numbers.replica_coverage import Coverage
from holdfast_core.detectors.numbers.replica_sides import Difference, by_part, difference
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

UNDECIDED_STEPS = 16
"""Ranks look at every step, every second, every fourth ...; that all but the slowest have looked."""


@dataclass(frozen=True)
class SilentCorruption(Detector):
    """Reports once in a generation: what differs once differs ever after, and spreads."""

    name: ClassVar[str] = "silent_corruption"

    note: str = ""
    """What an operator should know about the comparison; "" if nothing. It stays over a restart until it changes."""
    _reported: bool = False
    _undecided: store.Verdict | None = None
    """On the first difference, for which there was no majority."""
    _learned: LearnedReplicas = field(default_factory=LearnedReplicas)
    _coverage: Coverage = field(default_factory=Coverage)

    def see_step(self, step: StepView) -> DetectorResult:
        """Compare the hashes of each part."""
        if self._reported:
            return DetectorResult(self)
        known, differences = self, _certain(step.summary)
        if step.summary.plain or step.summary.coverage:  # else, as in most runs, nothing is to be learned
            known, more = self._learn(step.step, step.summary)
            differences += more
        return known._judge(step.step, differences)

    def restarted(self, _after_step: int) -> Self:
        """Report again."""
        return type(self)(note=self.note)

    def unseen(self, rank: int) -> str:
        """Return why a flipped bit in this rank's parameters would not be seen, as far as that is known here; or ""."""
        return self._coverage.unseen(rank, self._learned)

    def _learn(self, step: int, summary: store.StepSummary) -> tuple[Self, list[Difference]]:
        learned, differences = self._learned.see(step, summary.plain)
        coverage = self._coverage.with_more(summary.coverage) if summary.coverage else self._coverage
        note = coverage.note(learned)
        known = replace(self, _learned=learned, _coverage=coverage, note=self.note if note is None else note)
        return known._without_drift(), differences

    def _without_drift(self) -> Self:
        """Drop the suspicion of ranks that were only seen to be alike, if all of them have parted since."""
        first = self._undecided
        is_drift = first is not None and first.corruption.HasField("equal_step") and self._learned.has_parted
        return replace(self, _undecided=None) if is_drift else self

    def _judge(self, step: int, differences: list[Difference]) -> DetectorResult:
        newest = _verdict(step, differences) if differences else None
        first = self._undecided or newest
        if first is None:
            return DetectorResult(self)
        is_decided = any(difference.has_majority for difference in differences)
        if not is_decided and step - first.step < UNDECIDED_STEPS:
            return DetectorResult(replace(self, _undecided=first))
        verdict = newest if newest is not None and is_decided else first
        finding = Finding(verdict=verdict, proven_step=first.step)
        return DetectorResult(replace(self, _reported=True, _undecided=None), (finding,))


def _certain(summary: store.StepSummary) -> list[Difference]:
    """Return the differences in parts that must be equal."""
    return [
        difference(part, [side.ranks for side in sides])
        for part, sides in by_part(summary.replicas).items()
        if len(sides) > 1
    ]


def _verdict(step: int, differences: list[Difference]) -> store.Verdict:
    # A majority says who is wrong; parts without one can only repeat that somebody is.
    decided = [difference for difference in differences if difference.has_majority]
    telling = decided or differences
    blames = Counter(rank for difference in telling for rank in difference.odd)
    culprits = sorted(blames, key=lambda rank: (-blames[rank], rank))
    return store.Verdict(
        kind=store.VERDICT_KIND_SILENT_CORRUPTION,
        culprits=culprits,
        step=step,
        confidence_ratio=1.0 if decided else 0.5,
        corruption=store.CorruptionDetail(
            part=telling[0].part,
            more_parts=len(telling) - 1,
            has_majority=bool(decided),
            equal_step=telling[0].equal_step,
        ),
    )
