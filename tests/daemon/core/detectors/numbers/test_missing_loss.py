"""Losses that are no longer reported."""

from collections.abc import Iterable

import pytest

from holdfast_daemon.core.detectors.framework import Detector
from holdfast_daemon.core.detectors.numbers.missing_loss import (
    HABIT_RATIO,
    LIMIT_STEPS,
    REPORTED_RATIO,
    MissingLoss,
)
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show, steps_of

EVERY_TENTH = [step % 10 == 0 for step in range(100)]


def missing_at(reported: Iterable[bool], detector: Detector | None = None) -> tuple[Detector, list[int]]:
    summaries = (
        store.StepSummary(step=step, loss_sum=2.0 * is_there, loss_count=int(is_there))
        for step, is_there in enumerate(reported)
    )
    detector, verdicts = show(detector or MissingLoss(), summaries)
    return detector, steps_of(verdicts)


def test_a_loss_missing_for_twenty_steps_is_reported_once() -> None:
    assert missing_at([*[True] * 10, *[False] * 50])[1] == [9 + LIMIT_STEPS]


def test_a_loss_that_comes_back_and_goes_missing_again_is_reported_again() -> None:
    away = [*[True] * 10, *[False] * 25, *[True] * 3, *[False] * 60]
    assert missing_at(away)[1] == [9 + LIMIT_STEPS, 37 + REPORTED_RATIO * 25 + 1]


def test_a_run_that_never_reports_a_loss_misses_none() -> None:
    assert missing_at([False] * 100)[1] == []


def test_a_run_that_reports_every_tenth_step_misses_none_until_six_are_overdue() -> None:
    assert missing_at([*EVERY_TENTH, *[False] * 80])[1] == [90 + HABIT_RATIO * 9 + 1]


@pytest.mark.parametrize(("before", "after"), [(100, 500), (1, 10), (10, 50), (500, 100)])
def test_a_run_that_reports_less_often_than_before_misses_none(before: int, after: int) -> None:
    cadence = [step % every == 0 for every in (before, after) for step in range(20 * every)]
    assert missing_at(cadence)[1] == []


def test_a_change_of_cadence_that_is_too_large_to_expect_is_reported_once() -> None:
    cadence = [step % every == 0 for every in (1, 300) for step in range(40 * every)]
    assert len(missing_at(cadence)[1]) == 1


def test_a_new_generation_knows_how_often_losses_come() -> None:
    detector, _ = missing_at(EVERY_TENTH)
    assert missing_at([*[False] * 9, True, *[False] * 9], detector.restarted(99))[1] == []
