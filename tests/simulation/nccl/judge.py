"""Compares the verdicts of a detector with the truth, and prints how often they agree."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from tests.simulation.nccl.cases import Case
from tests.simulation.nccl.documents import Document
from tests.simulation.nccl.reference import MOST_RANKS, Reference


class Verdict(Protocol):
    """What a detector says of a case."""

    @property
    def kind(self) -> str:
        """Word for the kind of the hang. It is counted, not judged."""

    @property
    def culprits(self) -> Sequence[int]:
        """Global ranks that it blames. Empty: it blames nobody."""


Detector = Callable[[Case], Verdict]


class Outcome(Enum):
    """How good a verdict is."""

    RIGHT = "right"
    """It names the culprits, or nobody where it cannot be known."""
    PARTLY = "partly"
    """It names a culprit and no innocent rank, but not all, or only one of two sides."""
    MISSED = "missed"
    """It names nobody although the evidence shows the culprits."""
    LUCKY = "lucky"
    """It names the culprits although the evidence does not show them."""
    WRONG = "wrong"
    """It names an innocent rank."""


def judge(case: Case, verdict: Verdict) -> Outcome:
    """Return how good a verdict is."""
    truth, named = case.truth, frozenset(verdict.culprits)
    if not named:
        return Outcome.MISSED if truth.decidable else Outcome.RIGHT
    if not named <= truth.may_name:
        return Outcome.WRONG
    if not truth.culprits & named:
        return Outcome.WRONG
    if not truth.decidable:
        return Outcome.LUCKY
    if not truth.shown <= named:
        return Outcome.PARTLY
    one_sided = truth.both_sides and named == truth.culprits and truth.may_name > truth.culprits
    return Outcome.PARTLY if one_sided else Outcome.RIGHT


def shown_by_reference(case: Case) -> frozenset[int]:
    """Return the ranks that the exhaustive reference calls decidable. None are in a large world or a moving run."""
    moved = any(_standing(case.earlier[rank]) != _standing(document) for rank, document in case.documents.items())
    if moved or case.world_size > MOST_RANKS:
        return frozenset()
    return Reference(case.documents, case.dead, case.world_size).decidable()


def _standing(document: Document | None) -> object:
    """Return what changes in a dump while a rank makes progress."""
    if document is None:
        return None
    entries = [(entry["record_id"], entry["state"], entry["retired"]) for entry in document.get("entries", ())]
    return document["pg_status"], entries


@dataclass
class Score:
    """How often each outcome was seen, by kind of fault."""

    outcomes: defaultdict[str, Counter[Outcome]] = field(default_factory=lambda: defaultdict(Counter))
    words: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Kinds that the detector said, by kind of fault."""
    wrong: list[Case] = field(default_factory=list)
    """The first cases in which an innocent rank was named, to look at."""
    small: int = 0
    """Cases of worlds that the reference judges."""
    decidable: int = 0
    """Those in which it calls ranks decidable."""
    shown: int = 0
    """Culprits that it calls decidable."""
    named: int = 0
    """Those that the detector named."""
    unnamed: list[Case] = field(default_factory=list)
    """Cases in which the detector left out a culprit that the reference calls decidable."""
    misjudged: list[Case] = field(default_factory=list)
    """Cases in which the reference calls an innocent rank decidable. There must be none."""

    def add(self, case: Case, verdict: Verdict) -> Outcome:
        """Count a verdict."""
        self._compare(case, verdict)
        outcome = judge(case, verdict)
        self.outcomes[case.truth.kind][outcome] += 1
        self.words[case.truth.kind][verdict.kind] += 1
        if outcome is Outcome.WRONG and len(self.wrong) < 20:
            self.wrong.append(case)
        return outcome

    def _compare(self, case: Case, verdict: Verdict) -> None:
        """Count what the reference calls decidable, and what the detector named of it."""
        ranks = shown_by_reference(case)
        culprits = ranks & case.truth.culprits
        missing = culprits - frozenset(verdict.culprits)
        self.small += case.world_size <= MOST_RANKS
        self.decidable += bool(ranks)
        self.shown += len(culprits)
        self.named += len(culprits) - len(missing)
        if missing:
            self.unnamed.append(case)
        if ranks > culprits:
            self.misjudged.append(case)

    @property
    def named_share(self) -> float:
        """Share of the culprits that the reference calls decidable and the detector named."""
        return self.named / max(1, self.shown)

    def total(self, outcome: Outcome) -> int:
        """Return how often an outcome was seen."""
        return sum(counts[outcome] for counts in self.outcomes.values())

    def table(self) -> str:
        """Return a table of outcomes, and of the words that the detector used."""
        head = f"{'fault':16}{'cases':>7}" + "".join(f"{outcome.value:>8}" for outcome in Outcome) + "  words"
        lines = [head]
        for kind in [*sorted(self.outcomes), "all"]:
            counts = sum(self.outcomes.values(), Counter()) if kind == "all" else self.outcomes[kind]
            row = "".join(f"{counts[outcome]:8}" for outcome in Outcome)
            said = (
                ", ".join(f"{word} {count}" for word, count in self.words[kind].most_common(4)) if kind != "all" else ""
            )
            lines.append(f"{kind:16}{sum(counts.values()):7}{row}  {said}")
        lines.append(
            f"reference: decidable in {self.decidable / max(1, self.small):.1%} of {self.small} cases;"
            f" {self.named_share:.1%} of {self.shown} culprits named; {len(self.misjudged)} cases misjudged"
        )
        return "\n".join(lines)


def score(detector: Detector, drawn: Iterable[Case]) -> Score:
    """Let a detector judge cases."""
    result = Score()
    for case in drawn:
        result.add(case, detector(case))
    return result
