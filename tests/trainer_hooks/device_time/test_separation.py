"""When a loop counts as separated, from the numbers of known and unknown steps."""

import pytest

from holdfast_hooks.device_time.device_time import FIRST_UNKNOWN_STEPS, NOT_YET, WINDOW_STEPS, Separation
from holdfast_proto.v1 import common_pb2 as common

EVENTS = (common.OWN_TIME_SOURCE_EVENTS, "")
NONE = common.OWN_TIME_SOURCE_NONE


@pytest.fixture
def separation() -> Separation:
    return Separation()


def test_the_first_steps_of_a_loop_may_be_unknown(separation: Separation) -> None:
    separation.look(0, FIRST_UNKNOWN_STEPS, "no wrapper")
    assert separation.answer == NOT_YET
    separation.look(1, FIRST_UNKNOWN_STEPS, "no wrapper")
    assert separation.answer == EVENTS


@pytest.mark.parametrize(("known", "is_separated"), [(4, True), (3, False)])
def test_half_of_the_steps_of_a_stretch_must_be_known(separation: Separation, known: int, is_separated: bool) -> None:
    separation.look(1, 0, "")
    separation.look(1 + known, WINDOW_STEPS - known - 1, "odd")  # one step is missing
    assert separation.answer == EVENTS
    separation.look(1 + known, WINDOW_STEPS - known, "odd")
    assert separation.answer == (EVENTS if is_separated else (NONE, "odd"))


def test_only_steps_since_the_answer_before_count(separation: Separation) -> None:
    separation.look(1000, 0, "")
    separation.look(1000, WINDOW_STEPS, "odd")
    assert separation.answer == (NONE, "odd")
    separation.look(1000 + WINDOW_STEPS, WINDOW_STEPS, "odd")
    assert separation.answer == EVENTS


def test_a_loop_without_a_known_step_is_not_separated_and_the_first_reason_stays(separation: Separation) -> None:
    separation.look(0, FIRST_UNKNOWN_STEPS + 1, "first")
    assert separation.answer == (NONE, "first")
    separation.look(0, 2 * WINDOW_STEPS, "second")
    assert separation.answer == (NONE, "first")


def test_a_failure_is_final(separation: Separation) -> None:
    separation.fail("refused")
    separation.look(10 * WINDOW_STEPS, 0, "")
    separation.look(20 * WINDOW_STEPS, 0, "")
    assert separation.answer == (NONE, "refused")
