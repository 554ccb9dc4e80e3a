"""Losses that rise slowly."""

import random
from collections.abc import Iterable

import pytest

from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.numbers.loss_rise import LossRise
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show, steps_of


def verdicts(losses: Iterable[float], detector: Detector | None = None, first: int = 0) -> list[store.Verdict]:
    summaries = (store.StepSummary(step=step, loss_sum=loss, loss_count=1) for step, loss in enumerate(losses, first))
    return show(detector or LossRise(), summaries)[1]


def noisy(steps: int, rise: float = 0.0) -> list[float]:
    rng = random.Random(1)
    return [2.0 * (1.0 + rise * max(0, step - 500) / 1000) + rng.gauss(0.0, 0.02) for step in range(steps)]


def test_loss_that_doubles_over_a_thousand_steps_is_reported() -> None:
    found = verdicts(noisy(1500, 1.0))
    assert found and 500 < found[0].step < 900
    assert found[0].message.startswith("the loss has risen slowly: its median over 64 losses is ")


@pytest.mark.parametrize("rise", [0.0, -0.5, 0.02])
def test_loss_that_stays_or_falls_is_not_reported(rise: float) -> None:
    assert verdicts(noisy(1500, rise)) == []


def test_loss_of_both_signs_is_not_judged() -> None:
    assert verdicts([loss - 2.0 for loss in noisy(1500, 1.0)]) == []


def test_risen_level_is_reported_once() -> None:
    assert len(steps_of(verdicts([*[2.0] * 300, *[2.5] * 600]))) == 1
