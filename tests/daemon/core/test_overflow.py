"""The watch for overflow loops."""

from holdfast_daemon.core.overflow import LIMIT_STEPS, OverflowWatch


def loops_at(overflows: list[bool]) -> list[int]:
    watch, found = OverflowWatch(), []
    for step, overflow in enumerate(overflows):
        watch, is_loop = watch.observe(overflow)
        if is_loop:
            found.append(step)
    return found


def test_a_streak_becomes_a_loop_at_its_limit_and_is_told_once() -> None:
    assert loops_at([False] * 3 + [True] * (3 * LIMIT_STEPS)) == [2 + LIMIT_STEPS]


def test_one_good_step_ends_a_streak() -> None:
    nearly = [True] * (LIMIT_STEPS - 1)
    assert loops_at([*nearly, False, *nearly, False, *nearly]) == []
    assert loops_at([*nearly, False, *nearly, True]) == [2 * LIMIT_STEPS - 1]
