"""The time left: computed and worded once, for the console and for `holdfast top`."""

import pytest

from holdfast_core.naming import time_left_s, time_left_text


@pytest.mark.parametrize(
    ("planned", "newest", "step_s", "is_training", "expected"),
    [
        (100, 49, 0.5, True, 25.0),
        (100, -1, 0.5, True, 50.0),
        (100, 99, None, False, 0.0),
        (100, 120, 0.5, True, 0.0),
        (0, 49, 0.5, True, None),
        (100, 49, None, True, None),
        (100, 49, 0.5, False, None),
    ],
)
def test_it_is_the_steps_that_are_left_at_the_usual_time(
    planned: int, newest: int, step_s: float | None, is_training: bool, expected: float | None
) -> None:
    assert time_left_s(planned, newest, step_s, is_training=is_training) == expected


@pytest.mark.parametrize(
    ("left_s", "text"),
    [
        (0.0, "0 s"),
        (59.6, "1 min"),
        (61.0, "1 min 1 s"),
        (12_000.0, "3 h 20 min"),
        (90_000.0, "1 d 1 h"),
        (86_405.0, "1 d"),
    ],
)
def test_it_is_worded_in_the_two_largest_units(left_s: float, text: str) -> None:
    assert time_left_text(left_s) == f"about {text} left"
