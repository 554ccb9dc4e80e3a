"""The core never names an innocent rank in simulated hangs, and names most culprits that the dumps show."""

import pytest

from tests.simulation.nccl.cases import cases
from tests.simulation.nccl.diagnosed import named
from tests.simulation.nccl.judge import Score


def score_of(seed: int, count: int) -> Score:
    score = Score()
    for case in cases(seed, count):
        score.add(case, named(case))
    return score


def check(score: Score, least_named: float) -> None:
    assert [case.name for case in score.wrong] == []
    assert [case.name for case in score.misjudged] == []
    assert score.named_share >= least_named, [case.name for case in score.unnamed]


def test_no_innocent_rank_is_named() -> None:
    check(score_of(seed=1, count=60), least_named=0.9)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(11, 16))
def test_no_innocent_rank_is_named_in_two_thousand_hangs(seed: int) -> None:
    check(score_of(seed, count=2000), least_named=0.93)
