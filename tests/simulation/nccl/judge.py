"""Compares the verdicts of a detector with the truth, and prints how often they agree."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from tests.simulation.nccl.cases import Case


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


@dataclass
class Score:
    """How often each outcome was seen, by kind of fault."""

    outcomes: defaultdict[str, Counter[Outcome]] = field(default_factory=lambda: defaultdict(Counter))
    words: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Kinds that the detector said, by kind of fault."""
    wrong: list[Case] = field(default_factory=list)
    """The first cases in which an innocent rank was named, to look at."""

    def add(self, case: Case, verdict: Verdict) -> Outcome:
        """Count a verdict."""
        outcome = judge(case, verdict)
        self.outcomes[case.truth.kind][outcome] += 1
        self.words[case.truth.kind][verdict.kind] += 1
        if outcome is Outcome.WRONG and len(self.wrong) < 20:
            self.wrong.append(case)
        return outcome

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
        return "\n".join(lines)


def score(detector: Detector, drawn: Iterable[Case]) -> Score:
    """Let a detector judge cases."""
    result = Score()
    for case in drawn:
        result.add(case, detector(case))
    return result
