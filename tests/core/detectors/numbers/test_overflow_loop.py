"""Overflow loops."""

from holdfast_core.detectors.numbers.non_finite import LIMIT_STEPS, OverflowLoop
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show, steps_of


def loops_at(overflows: list[bool]) -> list[int]:
    summaries = (store.StepSummary(step=step, overflow=overflow) for step, overflow in enumerate(overflows))
    return steps_of(show(OverflowLoop(), summaries)[1])


def test_a_streak_becomes_a_loop_at_its_limit_and_is_reported_once() -> None:
    assert loops_at([False] * 3 + [True] * (3 * LIMIT_STEPS)) == [2 + LIMIT_STEPS]


def test_one_good_step_ends_a_streak() -> None:
    nearly = [True] * (LIMIT_STEPS - 1)
    assert loops_at([*nearly, False, *nearly, False, *nearly]) == []
    assert loops_at([*nearly, False, *nearly, True]) == [2 * LIMIT_STEPS - 1]


def test_a_new_generation_is_reported_anew() -> None:
    loop = [store.StepSummary(step=step, overflow=True) for step in range(LIMIT_STEPS)]
    detector, _ = show(OverflowLoop(), loop)
    assert len(show(detector.restarted(-1), loop)[1]) == 1
