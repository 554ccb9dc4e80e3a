"""Losses that are no longer reported."""

from collections.abc import Iterable

from holdfast_daemon.core.detectors.framework import Detector
from holdfast_daemon.core.detectors.numbers.missing_loss import LIMIT_STEPS, MissingLoss
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


def test_a_loss_missing_for_five_steps_is_reported_once() -> None:
    assert missing_at([*[True] * 10, *[False] * 20])[1] == [9 + LIMIT_STEPS]


def test_a_loss_that_comes_back_and_goes_missing_again_is_reported_again() -> None:
    assert missing_at([*[True] * 10, *[False] * 6, *[True] * 3, *[False] * 30])[1] == [14, 19 + 4]


def test_a_run_that_never_reports_a_loss_misses_none() -> None:
    assert missing_at([False] * 100)[1] == []


def test_a_run_that_reports_every_tenth_step_misses_none_until_two_are_overdue() -> None:
    assert missing_at([*EVERY_TENTH, *[False] * 50])[1] == [90 + 19]


def test_a_new_generation_knows_how_often_losses_come() -> None:
    detector, _ = missing_at(EVERY_TENTH)
    assert missing_at([*[False] * 9, True, *[False] * 9], detector.restarted(99))[1] == []
