"""What the seconds of one step were used for."""

import math
import random

import pytest

from holdfast_core.accounting.step_split import split_step, stalled_s
from holdfast_core.deadlines import Deadlines
from holdfast_proto.v1.common_pb2 import (
    PHASE_CHECKPOINT,
    PHASE_DATA,
    PHASE_EVAL,
    PHASE_FORWARD_BACKWARD,
    PHASE_IDLE,
    PHASE_OPTIMIZER,
    Phase,
)
from holdfast_proto.v1.store_pb2 import PRESET_FAST

TRAIN = PHASE_FORWARD_BACKWARD


@pytest.mark.parametrize(
    ("duration_s", "phase_s", "expected"),
    [
        pytest.param(3.0, {}, {"productive": 3.0}, id="no phases"),
        pytest.param(
            10.0,
            {
                TRAIN: 3.0,
                PHASE_OPTIMIZER: 1.0,
                PHASE_CHECKPOINT: 2.0,
                PHASE_EVAL: 3.0,
                PHASE_DATA: 0.5,
                PHASE_IDLE: 0.5,
            },
            {"productive": 4.0, "checkpoint_stall": 2.0, "evaluation": 3.0, "data_wait": 0.5, "idle": 0.5},
            id="one phase after the other",
        ),
        pytest.param(
            10.0, {TRAIN: 10.0, PHASE_EVAL: 8.0}, {"productive": 2.0, "evaluation": 8.0}, id="one rank evaluates alone"
        ),
        pytest.param(
            10.0,
            {TRAIN: 2.0, PHASE_EVAL: 8.0, PHASE_IDLE: 8.0},
            {"productive": 2.0, "evaluation": 8.0},
            id="the others idle meanwhile",
        ),
        pytest.param(10.0, {TRAIN: 10.0, PHASE_IDLE: 8.0}, {"productive": 10.0}, id="a rank idles while others train"),
        pytest.param(
            4.0,
            {PHASE_CHECKPOINT: 3.0, PHASE_EVAL: 3.0, PHASE_DATA: 3.0},
            {"checkpoint_stall": 3.0, "evaluation": 1.0},
            id="more than the step",
        ),
    ],
)
def test_a_step_is_split_by_its_phases(
    duration_s: float, phase_s: dict[int, float], expected: dict[str, float]
) -> None:
    split = {use: seconds for use, seconds in split_step(duration_s, phase_s).items() if seconds}
    assert split == pytest.approx(expected)


def test_whatever_the_phases_are_the_parts_sum_to_the_step() -> None:
    chance = random.Random(1)
    for _ in range(500):
        phases = chance.sample(Phase.values(), chance.randrange(len(Phase.values())))
        duration_s = chance.choice([0.0, 0.01, 5.0, 1e6])
        split = split_step(duration_s, {phase: chance.expovariate(1.0 / (duration_s + 0.1)) for phase in phases})
        assert min(split.values()) >= 0.0
        assert math.fsum(split.values()) == pytest.approx(duration_s, rel=1e-12)


def test_a_training_time_beyond_the_deadline_was_a_standstill_except_for_the_usual_step() -> None:
    deadlines = Deadlines.for_preset(PRESET_FAST)
    assert stalled_s(1000.0, deadlines) == 0.0
    for _ in range(10):
        deadlines = deadlines.observe(0.5, {})
    assert deadlines.deadline_s(TRAIN, 1000) == 1.5
    assert stalled_s(1.5, deadlines) == 0.0
    assert stalled_s(9.5, deadlines) == 9.0
