"""What the ranks were seen to do."""

import math
import random

import pytest

from holdfast_core.accounting.phase_watch import (
    MOST_NODES_SEEN,
    MOST_STRETCHES,
    MOST_UNSEEN_S,
    SeenStretch,
    extended,
    seen_between,
    seen_use,
    split_step,
    stalled_s,
)
from holdfast_core.deadlines import Deadlines
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
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


def node(phase: "common.Phase", life: "store.Life" = store.LIFE_RUNNING, generation: int = 2) -> store.NodeState:
    rank = store.RankState(life=life, progress=common.Progress(phase=phase))
    return store.NodeState(generation=generation, ranks=[rank])


def use_of(*nodes: store.NodeState) -> str | None:
    named = {f"n{number}": one for number, one in enumerate(nodes)}
    return seen_use(named, [*named], 2)


def test_what_holds_the_others_up_wins_and_what_shows_nothing_is_left_out() -> None:
    trains, evaluates = node(common.PHASE_OPTIMIZER), node(common.PHASE_EVAL)
    assert use_of(trains, evaluates) == "evaluation"
    assert use_of(evaluates, node(common.PHASE_CHECKPOINT)) == "checkpoint_stall"
    assert use_of(trains, node(common.PHASE_IDLE)) == "productive"
    assert use_of(node(common.PHASE_OPTIMIZER, store.LIFE_EXITED)) == "idle"
    assert use_of(node(common.PHASE_INIT), store.NodeState(generation=2)) is None
    assert use_of(node(common.PHASE_EVAL, generation=1)) is None
    assert use_of() is None


def test_a_large_run_is_seen_by_a_few_nodes_and_the_first_is_one_of_them() -> None:
    looks = 0

    class Nodes(dict[str, store.NodeState]):
        def get(self, name: str, default: object = None) -> store.NodeState:
            nonlocal looks
            looks += 1
            return node(common.PHASE_EVAL if name == "0" else common.PHASE_OPTIMIZER)

    assert seen_use(Nodes(), [str(number) for number in range(1000)], 2) == "evaluation"
    assert 16 <= looks <= MOST_NODES_SEEN


def test_a_look_holds_until_the_next_one_unless_that_comes_late() -> None:
    watched = extended((), "productive", 100.0)
    watched = extended(watched, "productive", 101.0)
    watched = extended(watched, "evaluation", 102.0)
    watched = extended(watched, None, 103.0)
    watched = extended(watched, "evaluation", 104.0)
    assert watched == (SeenStretch("productive", 100.0, 102.0), SeenStretch("evaluation", 102.0, 104.0))
    late = 104.0 + MOST_UNSEEN_S + 1.0
    watched = extended(watched, "evaluation", late)
    watched = extended(watched, "idle", late + 1.0)
    assert seen_between(watched, 101.5, late + 0.5) == {"productive": 0.5, "evaluation": 2.5}


def test_a_long_time_without_steps_needs_no_more_and_more_memory() -> None:
    watched: tuple[SeenStretch, ...] = ()
    for number in range(3 * MOST_STRETCHES):
        watched = extended(watched, ("productive", "data_wait")[number % 2], 100.0 + number)
    assert (len(watched), sum(seen_between(watched, 0.0, 1e9).values())) == (MOST_STRETCHES, 3 * MOST_STRETCHES - 1)


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
