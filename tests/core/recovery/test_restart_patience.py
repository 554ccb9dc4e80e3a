"""The time from a standstill to a restart, by sign, preset, phase and history."""

import pytest

from holdfast_core.recovery.restart_patience import PAUSES, RestartPatience
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

COMPUTING = common.PHASE_FORWARD_BACKWARD


def patience(preset: "store.Preset" = store.PRESET_DEFAULT, **record: object) -> RestartPatience:
    return RestartPatience.of(store.RunSpec(preset=preset), store.CoordinatorState(**record))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("preset", "likely_s", "computing_s", "pauses_s"),
    [
        (store.PRESET_FAST, 10, 60, 180),
        (store.PRESET_DEFAULT, 60, 600, 1800),
        (store.PRESET_PATIENT, 300, 1800, 3600),
        (store.PRESET_UNSPECIFIED, 60, 600, 1800),
    ],
)
def test_each_preset_has_a_row(preset: "store.Preset", likely_s: int, computing_s: int, pauses_s: int) -> None:
    of_preset = patience(preset)
    assert (of_preset.likely_s(COMPUTING), of_preset.time_alone_s(COMPUTING)) == (likely_s, computing_s)
    assert {of_preset.time_alone_s(phase) for phase in PAUSES} == {pauses_s}
    assert (of_preset.suspended_s, of_preset.leaving_s) == (computing_s, pauses_s)


def test_the_factor_scales_all_rows() -> None:
    scaled = RestartPatience.of(store.RunSpec(restart_patience=0.5), store.CoordinatorState())
    assert (scaled.likely_s(COMPUTING), scaled.time_alone_s(COMPUTING), scaled.leaving_s) == (30, 300, 900)


def test_a_phase_that_took_long_and_ended_well_has_three_times_as_long() -> None:
    learned = patience(longest_phase_s={common.PHASE_EVAL: 1000.0, COMPUTING: 30.0})
    assert learned.time_alone_s(common.PHASE_EVAL) == 3000.0
    assert learned.time_alone_s(common.PHASE_CHECKPOINT) == 1800.0
    assert (learned.likely_s(COMPUTING), learned.time_alone_s(COMPUTING)) == (90.0, 600.0)


def test_each_uncertain_restart_at_one_step_doubles_and_a_new_step_forgets_them() -> None:
    again = patience(uncertain_restarts=2, newest_step=7, step_at_restart=7)
    assert (again.likely_s(COMPUTING), again.time_alone_s(COMPUTING)) == (240, 2400)
    assert patience(uncertain_restarts=2, newest_step=8, step_at_restart=7).likely_s(COMPUTING) == 60
