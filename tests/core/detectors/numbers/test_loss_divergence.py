"""Losses that leave their level and do not come back."""

import random
from collections.abc import Iterable

import pytest

from holdfast_core.detectors.framework import DetectorResult
from holdfast_core.detectors.numbers.loss_divergence import LossDivergence
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import view


def results(
    losses: Iterable[float], detector: LossDivergence | None = None, *, first: int = 0, rate: float = 0.0
) -> list[DetectorResult]:
    found, watch = [], detector or LossDivergence()
    for step, loss in enumerate(losses, first):
        result = watch.see_step(view(store.StepSummary(step=step, loss_sum=loss, loss_count=1, learning_rate=rate)))
        assert isinstance(result.next, LossDivergence)
        watch = result.next
        found.append(result)
    return found


def reported(found: list[DetectorResult]) -> list[int]:
    return [finding.verdict.step for result in found for finding in result.findings]


def noisy(steps: int, *, ratio: float = 1.0, since: int = 500, until: int = 10**9) -> list[float]:
    rng = random.Random(1)
    return [2.0 * (ratio if since <= step < until else 1.0) + rng.gauss(0.0, 0.05) for step in range(steps)]


def test_a_loss_that_stays_high_is_reported_once_with_its_level_and_the_last_usual_step() -> None:
    found = results(noisy(1500, ratio=1.5))
    (step,) = reported(found)
    assert 500 + 128 <= step <= 500 + 128 + 40
    (finding,) = (finding for result in found for finding in result.findings)
    detail = finding.verdict.loss_divergence
    assert (detail.lowest, detail.loss) == pytest.approx((2.0, 3.0), rel=0.02)
    assert finding.proven_step == detail.usual_step
    assert 480 < detail.usual_step < 500 + 24
    assert finding.verdict.message.startswith("the loss has diverged: its median is 3")


@pytest.mark.parametrize(("ratio", "until"), [(1.0, 10**9), (1.05, 10**9), (0.5, 10**9), (3.0, 600), (1.5, 620)])
def test_a_loss_that_stays_falls_or_comes_back_is_not_reported(ratio: float, until: int) -> None:
    assert reported(results(noisy(1500, ratio=ratio, until=until))) == []


def test_a_loss_that_comes_back_ends_the_incident_and_may_diverge_again() -> None:
    found = results([*noisy(1000, ratio=2.0), *[2.0] * 300, *[4.0] * 300])
    endings = [ending for result in found for ending in result.endings]
    assert [ending.kind for ending in endings] == [store.VERDICT_KIND_LOSS_DIVERGENCE]
    assert "has come back: its median is 2 at step" in endings[0].what
    assert len(reported(found)) == 2


def test_a_loss_of_both_signs_is_not_judged() -> None:
    assert reported(results([loss - 2.0 for loss in noisy(1500, ratio=3.0)])) == []


def test_a_jump_of_the_learning_rate_begins_a_new_level() -> None:
    before = results(noisy(500), rate=0.1)[-1].next
    assert isinstance(before, LossDivergence)
    assert reported(results(noisy(800, ratio=2.0, since=0), before, first=500, rate=1.0)) == []
    assert len(reported(results(noisy(800, ratio=2.0, since=0), before, first=500, rate=0.1))) == 1


def test_a_restart_keeps_the_level_and_a_divergence_that_is_not_undone() -> None:
    diverged = results(noisy(1000, ratio=1.5))[-1].next
    assert isinstance(diverged, LossDivergence) and diverged.has_diverged
    assert diverged.restarted(900).has_diverged
    undone = diverged.restarted(450)
    assert not undone.has_diverged
    assert reported(results([3.0] * 300, undone, first=451)) != [], "the level is known, so it is found again"
    assert diverged.restarted(5).level is None
