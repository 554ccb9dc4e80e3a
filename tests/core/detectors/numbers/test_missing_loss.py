"""Losses that are no longer reported."""

import random
from collections.abc import Iterable, Iterator

import pytest

from holdfast_core.detectors.framework import Detector, Ending
from holdfast_core.detectors.numbers.missing_loss import (
    HABIT_RATIO,
    LIMIT_STEPS,
    REPORTED_RATIO,
    SILENT_RATIO,
    MissingLoss,
)
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show, steps_of, view

LOSS, NORM, BOTH, NOTHING = "loss", "norm", "both", "nothing"


def summary(step: int, what: str) -> store.StepSummary:
    made = store.StepSummary(step=step, learning_rate=1e-3, tokens=1000)
    if what in (LOSS, BOTH):
        made.loss_sum, made.loss_count = 2.0, 1
    if what in (NORM, BOTH):
        made.grad_norm = 0.5
    return made


def missing_at(reported: Iterable[str], detector: Detector | None = None) -> tuple[Detector, list[int]]:
    detector, verdicts = show(detector or MissingLoss(), (summary(step, what) for step, what in enumerate(reported)))
    return detector, steps_of(verdicts)


def every(period: int, times: int, otherwise: str = NOTHING) -> Iterator[str]:
    """Yield what is reported if the loss comes at each ``period``-th step, with the norm."""
    return (BOTH if step % period == 0 else otherwise for step in range(period * times))


def test_a_loss_that_disappears_while_the_gradient_norm_comes_is_reported_once() -> None:
    _, verdicts = show(MissingLoss(), (summary(step, BOTH if step < 10 else NORM) for step in range(1000)))
    (verdict,) = verdicts
    assert verdict.step == 9 + LIMIT_STEPS
    assert verdict.message == (
        f"no loss has been reported since step 9, although {LIMIT_STEPS} steps after it reported a gradient norm:"
        " does the training loop still report the loss?"
    )


def test_a_loss_that_comes_back_and_goes_missing_again_is_reported_again() -> None:
    away = [*[BOTH] * 10, *[NORM] * 120, *[BOTH] * 3, *[NORM] * 400]
    assert missing_at(away)[1] == [9 + LIMIT_STEPS, 132 + REPORTED_RATIO * 120 + 1]


def test_the_incident_ends_when_a_loss_comes_again() -> None:
    detector, _ = missing_at([*[BOTH] * 10, *[NORM] * 120])
    result = detector.see_step(view(summary(130, LOSS)))
    assert result.endings == (Ending(store.VERDICT_KIND_MISSING_LOSS, "a loss is reported again at step 130"),)
    assert result.next.see_step(view(summary(131, LOSS))).endings == ()


def test_a_run_that_never_reports_a_loss_misses_none() -> None:
    assert missing_at([NORM] * 1000)[1] == []


def test_a_run_with_a_norm_at_each_step_misses_none_until_six_losses_are_overdue() -> None:
    rarely = [*every(50, 10, NORM), *[NORM] * 400]
    assert missing_at(rarely)[1] == [450 + HABIT_RATIO * 49 + 1]


@pytest.mark.parametrize(
    ("first", "ratio"), [(1, 2), (1, 7), (1, 50), (1, 500), (1, 1000), (10, 3), (10, 100), (100, 5), (10, 1000)]
)
@pytest.mark.parametrize("is_rarer", [True, False])
def test_a_run_that_changes_how_often_it_reports_misses_none(first: int, ratio: int, is_rarer: bool) -> None:
    periods = (first, first * ratio) if is_rarer else (first * ratio, first)
    assert missing_at([*every(periods[0], 5), *every(periods[1], 4)])[1] == []


def test_a_run_that_reports_at_irregular_steps_misses_none() -> None:
    choice = random.Random(3)
    reported = [*every(1, 10)]
    for _ in range(60):
        reported += [*[NOTHING] * min(1500, int(5 * choice.paretovariate(0.7))), BOTH]
    assert missing_at(reported)[1] == []


def test_a_trainer_that_reports_the_norm_at_each_step_and_later_each_hundredth_loss_misses_none() -> None:
    assert missing_at([*every(1, 10), *every(100, 10, NORM)])[1] == []


def test_learning_rates_and_tokens_alone_say_nothing_about_the_loss() -> None:
    assert missing_at([*every(1, 50), *[NOTHING] * 1500])[1] == []


def test_a_run_that_reports_nothing_for_very_long_is_reported_with_both_readings() -> None:
    _, verdicts = show(MissingLoss(), (summary(step, LOSS if step < 10 else NOTHING) for step in range(5000)))
    (verdict,) = verdicts
    assert verdict.step == 9 + SILENT_RATIO
    assert verdict.message == (
        f"no loss has been reported since step 9, in {SILENT_RATIO} steps:"
        " the run reports it much less often now, or no longer"
    )


def test_a_new_generation_knows_how_often_losses_come() -> None:
    detector, _ = missing_at(every(50, 10, NORM))
    assert missing_at([*[NORM] * 200, BOTH], detector.restarted(499))[1] == []


def test_a_new_generation_ends_the_incident_of_the_one_before() -> None:
    detector, _ = missing_at([*[BOTH] * 10, *[NORM] * 120])
    restarted, again = missing_at([NORM] * 300, detector.restarted(100))
    assert again == []
    assert len(restarted.see_step(view(summary(401, LOSS))).endings) == 1
