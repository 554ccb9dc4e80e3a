"""Finds ranks whose memory differs from that of ranks which must hold the same, or whose results differ from before.

Ranks report hashes of parts of their parameters, taken at the end of a step. Some parts must be equal on all their
holders. Of others, Holdfast learns which ranks hold them alike: see learned_replicas.py.

Parts take turns, so that a fault is found when the turn of its part comes. Some ranks look more often than others: what
the few cannot decide may be decided when all look, so that this is waited for.

If the script asks for it, ranks also compute some steps again, and report what they computed differently themselves.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_core.detectors.numbers.learned_replicas import LEARNING_LOOKS, LearnedReplicas
from holdfast_core.detectors.numbers.replica_sides import Difference, by_part, difference
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store


@dataclass(frozen=True)
class Coverage:
    """What the ranks of a generation hold, in bytes, over all ranks."""

    ranks: int = 0
    """Ranks that have reported it."""
    replica_bytes: int = 0
    parameter_bytes: int = 0
    plain_ranks: tuple[int, ...] = ()
    """Ranks without replicas that are known, and with plain parameters: the looks show whether those are replicas."""

    def with_more(self, reported: Sequence[store.RankCoverage]) -> "Coverage":
        """Return the coverage with the reports of further ranks."""
        plain = (one.rank for one in reported if one.plain_bytes and not one.replica_bytes)
        return Coverage(
            ranks=self.ranks + len(reported),
            replica_bytes=self.replica_bytes + sum(one.replica_bytes for one in reported),
            parameter_bytes=self.parameter_bytes + sum(one.parameter_bytes for one in reported),
            plain_ranks=tuple(sorted({*self.plain_ranks, *plain})),
        )

    def note(self, learned: LearnedReplicas, *, refusal: str | None) -> str | None:
        """Return what an operator should know; "" if nothing; None while that is not known.

        Args:
            learned: the ranks that were seen to hold the same.
            refusal: why steps are not replayed; empty: they are; None: nothing is known of a replay.
        """
        if refusal:
            return f"no step is replayed: {refusal}"
        replays = refusal == ""
        if not self.ranks:
            return None
        if self.replica_bytes:
            share = self.replica_bytes / max(self.replica_bytes, self.parameter_bytes)
            is_enough = share >= _NEARLY_ALL or bool(self.plain_ranks)
            compared = f"{share:.1%} of the parameters' memory"
            only = f"silent corruption is looked for only in {compared}: the rest has no copy on another rank"
            also = f"silent corruption is looked for in {compared}, and in the rest by replayed steps"
            return "" if is_enough else also if replays else only
        if self.plain_ranks and not learned.are_none:
            return "" if learned.is_learned else None
        nothing = f"silent corruption is not looked for: {self._why_nothing()}"
        return "silent corruption is looked for only by replayed steps" if replays else nothing

    def _why_nothing(self) -> str:
        if not self.parameter_bytes:
            return "no parameters are in the state given to attach()"
        if self.ranks == 1:
            return "only one rank reports its parameters"
        if self.plain_ranks:
            return "no rank was seen to hold the same parameters as another rank"
        return "no rank holds a copy of another rank's parameters"

    def unseen(self, rank: int, learned: LearnedReplicas) -> str:
        """Return why a flipped bit in this rank's parameters would not be seen, as far as the looks decide; else ""."""
        if rank not in self.plain_ranks or learned.has_replica(rank):
            return ""
        if learned.are_none or learned.is_learned:
            return f"nobody could see it: no other rank was seen to hold the same parameters as rank {rank}"
        looks = f"{learned.looks} of {LEARNING_LOOKS} looks"
        return f"it is not known yet whether another rank holds the same parameters ({looks}): try again later"


UNDECIDED_STEPS = 16
"""Ranks look at every step, every second, every fourth ...; that all but the slowest have looked."""


@dataclass(frozen=True)
class SilentCorruption(Detector):
    """Reports once in a generation: what differs once differs ever after, and spreads.

    Ranks that replayed steps name are reported apart from that, each of them once.
    """

    name: ClassVar[str] = "silent_corruption"

    note: str = ""
    """What an operator should know about the comparison; "" if nothing. It stays over a restart until it changes."""
    _reported: bool = False
    _undecided: store.Verdict | None = None
    """On the first difference, for which there was no majority."""
    _learned: LearnedReplicas = field(default_factory=LearnedReplicas)
    _coverage: Coverage = field(default_factory=Coverage)
    _refusal: str | None = None
    """Why steps are not replayed: see :meth:`Coverage.note`. It stays over a restart, as the note."""
    _replay_culprits: frozenset[int] = frozenset()
    """Ranks that were reported because of a replayed step."""

    def see_step(self, step: StepView) -> DetectorResult:
        """Compare the hashes of each part, and look at what ranks computed differently in a replay of the step."""
        if not step.summary.HasField("replay"):
            return self._compare(step)
        known, findings = self._see_replay(step.step, step.summary.replay)
        compared = known._compare(step)
        return DetectorResult(compared.next, (*findings, *compared.findings))

    def _see_replay(self, step: int, replay: store.ReplaySummary) -> tuple[Self, tuple[Finding, ...]]:
        known = replace(self, _refusal=replay.refusal)._with_note()
        new = {one.rank: one for one in replay.differences if one.rank not in self._replay_culprits}
        findings = (_of_replay(step, [new[rank] for rank in sorted(new)]),) if new else ()
        return replace(known, _replay_culprits=self._replay_culprits.union(new)), findings

    def _with_note(self) -> Self:
        note = self._coverage.note(self._learned, refusal=self._refusal)
        return self if note is None else replace(self, note=note)

    def _compare(self, step: StepView) -> DetectorResult:
        if self._reported:
            return DetectorResult(self)
        known, differences = self, _certain(step.summary)
        if step.summary.plain or step.summary.coverage:  # else, as in most runs, nothing is to be learned
            known, more = self._learn(step.step, step.summary)
            differences += more
        return known._judge(step.step, differences)

    def restarted(self, _after_step: int) -> Self:
        """Report again."""
        return type(self)(note=self.note, _refusal=self._refusal)

    def unseen(self, rank: int) -> str:
        """Return why a flipped bit in this rank's parameters would not be seen, as far as that is known here; or ""."""
        return self._coverage.unseen(rank, self._learned)

    def _learn(self, step: int, summary: store.StepSummary) -> tuple[Self, list[Difference]]:
        learned, differences = self._learned.see(step, summary.plain)
        coverage = self._coverage.with_more(summary.coverage) if summary.coverage else self._coverage
        known = replace(self, _learned=learned, _coverage=coverage)._with_note()
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


def _of_replay(step: int, differences: Sequence[store.RankReplay]) -> Finding:
    """Return the finding of ranks that computed a step differently.

    If two of the three runs of each rank agree, training continues with what they computed: no state is in doubt.
    """
    first = differences[0]
    is_decided = all(one.vote in (session.REPLAY_VOTE_FIRST, session.REPLAY_VOTE_SECOND) for one in differences)
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_SILENT_CORRUPTION,
        culprits=[one.rank for one in differences],
        step=step,
        confidence_ratio=1.0 if is_decided else 0.5,
        corruption=store.CorruptionDetail(
            part=first.part, has_majority=is_decided, vote=first.vote or session.REPLAY_VOTE_NEITHER
        ),
    )
    if is_decided or first.vote == session.REPLAY_VOTE_UNCLEAR:
        return Finding(verdict=verdict)
    # The snapshot of the step before, and so its checkpoint, may be what is wrong.
    return Finding(verdict=verdict, proven_step=step - 1 if first.vote == session.REPLAY_VOTE_NOT_TAKEN else step)


_NEARLY_ALL = 0.99
"""Share from which nothing is said."""
