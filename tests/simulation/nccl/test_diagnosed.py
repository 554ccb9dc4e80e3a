"""The core never names an innocent rank in simulated hangs, and names most culprits that the dumps show."""

import pytest

from tests.simulation.nccl.cases import cases
from tests.simulation.nccl.diagnosed import named
from tests.simulation.nccl.judge import Outcome, Score


def score_of(seed: int, count: int) -> Score:
    score = Score()
    for case in cases(seed, count):
        score.add(case, named(case))
    return score


def check(score: Score) -> None:
    assert [case.name for case in score.wrong] == []
    decidable = sum(score.total(outcome) for outcome in (Outcome.RIGHT, Outcome.PARTLY, Outcome.MISSED))
    assert score.total(Outcome.MISSED) <= 0.12 * decidable


def test_no_innocent_rank_is_named() -> None:
    check(score_of(seed=1, count=60))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_innocent_rank_is_named_in_two_thousand_hangs() -> None:
    check(score_of(seed=2, count=2000))
