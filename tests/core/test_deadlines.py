"""The deadlines that are learned, and those before anything is learned."""

import pytest

from holdfast_core.deadlines import Deadlines
from holdfast_proto.v1.common_pb2 import (
    PHASE_CHECKPOINT,
    PHASE_DATA,
    PHASE_EVAL,
    PHASE_FORWARD_BACKWARD,
    PHASE_IDLE,
    PHASE_INIT,
    PHASE_OPTIMIZER,
)
from holdfast_proto.v1.store_pb2 import PRESET_DEFAULT, PRESET_FAST, PRESET_PATIENT, PRESET_UNSPECIFIED

STEP_PHASES = (PHASE_DATA, PHASE_FORWARD_BACKWARD, PHASE_OPTIMIZER)
RARE_PHASES = (PHASE_CHECKPOINT, PHASE_EVAL, PHASE_IDLE)


def after(deadlines: Deadlines, *durations_s: float) -> Deadlines:
    for duration_s in durations_s:
        deadlines = deadlines.observe(duration_s, {})
    return deadlines


def trained(*durations_s: float) -> Deadlines:
    """Return deadlines that have seen two quick first steps and then ``durations_s``."""
    return after(Deadlines.for_preset(PRESET_FAST), 0.1, 0.1, *durations_s)


@pytest.mark.parametrize("phase", STEP_PHASES)
def test_three_times_the_longest_step_is_allowed_in_every_phase_of_a_step(phase: int) -> None:
    assert trained(2.0, 4.0, 3.0).deadline_s(phase, 5) == 12.0


@pytest.mark.parametrize(
    ("preset", "floor_s"),
    [(PRESET_FAST, 1.0), (PRESET_DEFAULT, 5.0), (PRESET_PATIENT, 60.0), (PRESET_UNSPECIFIED, 5.0)],
)
def test_short_steps_leave_the_floor_of_the_preset(preset: int, floor_s: float) -> None:
    deadlines = after(Deadlines.for_preset(preset), *[0.01] * 10)  # type: ignore[arg-type]
    assert deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 10) == floor_s


def test_one_slow_step_among_a_hundred_and_twenty_eight_is_passed_over() -> None:
    assert trained(*[1.0] * 127, 500.0).deadline_s(PHASE_FORWARD_BACKWARD, 130) == 3.0


def test_two_slow_steps_among_a_hundred_and_twenty_eight_count() -> None:
    assert trained(*[1.0] * 126, 2.5, 2.5).deadline_s(PHASE_FORWARD_BACKWARD, 130) == 7.5


def test_one_step_that_overran_its_deadline_teaches_nothing_and_two_in_a_row_do() -> None:
    assert trained(0.1, 500.0).deadline_s(PHASE_DATA, 5) == 1.0
    assert trained(0.1, 500.0, 0.1, 500.0).deadline_s(PHASE_DATA, 7) == 1.0
    assert trained(0.1, 500.0, 400.0).deadline_s(PHASE_DATA, 6) == 1200.0


def test_steps_older_than_the_window_are_forgotten() -> None:
    assert trained(50.0, 50.0, *[1.0] * 128).deadline_s(PHASE_FORWARD_BACKWARD, 132) == 3.0


@pytest.mark.parametrize(
    ("preset", "start_up_s"), [(PRESET_FAST, 60.0), (PRESET_DEFAULT, 60.0), (PRESET_PATIENT, 600.0)]
)
def test_start_up_is_allowed_a_minute_or_ten_floors(preset: int, start_up_s: float) -> None:
    deadlines = Deadlines.for_preset(preset)  # type: ignore[arg-type]
    assert deadlines.deadline_s(PHASE_INIT, 0) == start_up_s
    assert deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 0) == start_up_s


def test_start_up_learns_from_the_longest_first_step() -> None:
    deadlines = after(Deadlines.for_preset(PRESET_FAST), 90.0, 2.0, 1.0)
    assert (deadlines.deadline_s(PHASE_INIT, 0), deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 1)) == (270.0, 270.0)


def test_steps_that_compile_do_not_lengthen_the_deadline_of_later_ones() -> None:
    deadlines = after(Deadlines.for_preset(PRESET_FAST), 90.0, 30.0, 1.0)
    assert deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 3) == 3.0


def test_second_step_is_allowed_more_than_later_ones() -> None:
    deadlines = trained(*[0.1] * 5)
    assert deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 1) == 20.0
    assert deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 2) == 1.0


def test_third_step_of_a_run_is_judged_like_the_first_ones_for_want_of_timings() -> None:
    assert trained().deadline_s(PHASE_FORWARD_BACKWARD, 2) == 20.0


def test_first_steps_of_a_later_generation_are_judged_by_those_of_an_earlier_one() -> None:
    assert trained(0.2).new_generation().deadline_s(PHASE_FORWARD_BACKWARD, 1) == 5.0
    assert Deadlines.for_preset(PRESET_FAST).new_generation().deadline_s(PHASE_FORWARD_BACKWARD, 1) == 20.0


def test_new_generation_keeps_what_was_learned_and_leaves_its_first_steps_out() -> None:
    deadlines = after(trained(*[1.0] * 5).new_generation(), 40.0, 40.0, 1.0)
    assert (deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 2), deadlines.deadline_s(PHASE_INIT, 0)) == (3.0, 120.0)


@pytest.mark.parametrize("phase", RARE_PHASES)
def test_rare_phase_is_allowed_more_before_it_has_been_seen(phase: int) -> None:
    assert trained(0.1).deadline_s(phase, 3) == 20.0
    assert trained(10.0).deadline_s(phase, 3) == 30.0
    assert Deadlines.for_preset(PRESET_PATIENT).deadline_s(phase, 3) == 240.0


@pytest.mark.parametrize("phase", RARE_PHASES)
def test_rare_phase_learns_its_own_duration_and_leaves_the_step_its_own(phase: int) -> None:
    deadlines = trained(1.0).observe(31.0, {phase: 30.0, PHASE_DATA: 0.5})
    assert (deadlines.deadline_s(phase, 4), deadlines.deadline_s(PHASE_FORWARD_BACKWARD, 4)) == (90.0, 3.0)


@pytest.mark.parametrize("phase", RARE_PHASES)
def test_rare_phase_that_was_short_so_far_may_take_four_floors(phase: int) -> None:
    assert trained(0.1).observe(0.11, {phase: 0.01}).deadline_s(phase, 4) == 4.0


def test_start_up_comes_before_the_rare_phases() -> None:
    assert trained(1.0).deadline_s(PHASE_CHECKPOINT, 0) == 60.0


def test_observing_changes_nothing_in_the_deadlines_observed_from() -> None:
    before = trained(1.0)
    before.observe(100.0, {PHASE_EVAL: 50.0})
    assert (before.deadline_s(PHASE_FORWARD_BACKWARD, 3), before.deadline_s(PHASE_EVAL, 3)) == (3.0, 20.0)


def test_a_later_start_is_judged_by_what_the_first_one_has_taught() -> None:
    first = Deadlines.for_preset(PRESET_FAST)
    untaught_s = first.deadline_s(PHASE_INIT, 0)
    started = first.observe_start(7.0).observe_start(2.0)
    for _ in range(3):
        started = started.observe(0.2, {})
    again_s = started.new_generation().deadline_s(PHASE_INIT, 0)
    assert untaught_s == 60.0
    assert again_s == pytest.approx(21.0)


def test_a_start_that_did_not_go_well_teaches_nothing() -> None:
    started = Deadlines.for_preset(PRESET_FAST)
    for _ in range(3):
        started = started.observe(0.2, {})
    assert started.new_generation().observe_start(50.0).new_generation().deadline_s(PHASE_INIT, 0) == 20.0
