"""Finds ranks whose memory differs from that of ranks which must hold the same.

Ranks report hashes of parts of their replicated tensors, taken at the end of a step. Of each part

    odd ranks = all but those that share the hash of more than half of the ranks which report the part

and without such a majority, as with two replicas, all that report it. A rank that reports no hash of a part
is not compared there. Parts take turns, so that a fault is found when the turn of its part comes. Some ranks look more
often than others: what the few cannot decide may be decided when all look, so that this is waited for.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_daemon.core.detectors.view import StepView
from holdfast_daemon.core.naming import ranks_named
from holdfast_proto.v1 import store_pb2 as store

UNDECIDED_STEPS = 16
"""Ranks look at every step, every second, every fourth ...; that all but the slowest have looked."""


@dataclass(frozen=True)
class _Difference:
    """A part that its holders do not hold alike."""

    part: str
    odd: tuple[int, ...]
    has_majority: bool


@dataclass(frozen=True)
class SilentCorruption(Detector):
    """Reports once in a generation: what differs once differs ever after, and spreads."""

    name: ClassVar[str] = "silent_corruption"

    _reported: bool = False
    _undecided: store.Verdict | None = None
    """On the first difference, for which there was no majority."""

    def see_step(self, step: StepView) -> DetectorResult:
        """Compare the hashes of each part."""
        differences = [] if self._reported else _differences(step.summary.replicas)
        newest = _verdict(step.step, differences) if differences else None
        first = self._undecided or newest
        if first is None:
            return DetectorResult(self)
        is_decided = any(difference.has_majority for difference in differences)
        if not is_decided and step.step - first.step < UNDECIDED_STEPS:
            return DetectorResult(SilentCorruption(_undecided=first))
        verdict = newest if newest is not None and is_decided else first
        return DetectorResult(SilentCorruption(_reported=True), (Finding(verdict=verdict, proven_step=first.step),))

    def restarted(self, _after_step: int) -> Self:
        """Report again."""
        return type(self)()


def _differences(replicas: Iterable[store.ReplicaHashes]) -> list[_Difference]:
    sides: dict[str, list[store.ReplicaHashes]] = {}
    for side in replicas:
        sides.setdefault(side.part, []).append(side)
    return [_difference(part, of_part) for part, of_part in sides.items() if len(of_part) > 1]


def _difference(part: str, sides: list[store.ReplicaHashes]) -> _Difference:
    largest = max(sides, key=lambda side: len(side.ranks))
    has_majority = 2 * len(largest.ranks) > sum(len(side.ranks) for side in sides)
    odd = (rank for side in sides if side is not largest or not has_majority for rank in side.ranks)
    return _Difference(part, tuple(odd), has_majority)


def _verdict(step: int, differences: list[_Difference]) -> store.Verdict:
    # A majority says who is wrong; parts without one can only repeat that somebody is.
    decided = [difference for difference in differences if difference.has_majority]
    telling = decided or differences
    blames = Counter(rank for difference in telling for rank in difference.odd)
    culprits = sorted(blames, key=lambda rank: (-blames[rank], rank))
    more = f" and {len(telling) - 1} more" if len(telling) > 1 else ""
    what = f"of {telling[0].part}{more} at the end of step {step}"
    if decided:
        verb = "holds" if len(culprits) == 1 else "hold"
        message = f"{ranks_named(culprits)} {verb} other values than the replicas' majority {what}"
    else:
        message = f"{ranks_named(culprits)} hold different values {what}: without a majority, either may be wrong"
    return store.Verdict(
        kind=store.VERDICT_KIND_SILENT_CORRUPTION,
        culprits=culprits,
        message=message,
        step=step,
        confidence_ratio=1.0 if decided else 0.5,
    )
