"""Evaluations and saves that the script has marked: no news while ranks work in them, and named when they hang."""

from typing import Any

import pytest

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import edited_record, enter_phase, restarted_after_s, running, set_ranks
from tests.support.core_world import World

MARKED = (common.PHASE_EVAL, common.PHASE_CHECKPOINT)
DEADLINE_S = 20.0
"""Deadline of a marked phase that the run has not seen yet, in the preset fast."""
RESTART_S = 180.0
"""Seconds until a restart in such a phase, in the preset fast."""
ALL = frozenset(range(4))


def marked(phase: "common.Phase" = common.PHASE_EVAL, *, moving: frozenset[int] = ALL, **options: Any) -> World:
    """Return a run whose four ranks have just entered a phase for the first time."""
    world = running(**options)
    enter_phase(world, phase)
    set_ranks(world, device="cpu")
    world.moving = set(moving)
    return world


def first_incident_after_s(world: World, at_most_s: float = 400.0) -> float:
    """Return the seconds until the first incident."""
    began = world.now
    while not world.incidents:
        assert world.now - began < at_most_s, "no incident"
        world.tick(seconds=0.2)
    return world.now - began


@pytest.mark.parametrize("phase", MARKED)
def test_the_first_long_evaluation_or_save_is_no_incident_while_ranks_work(phase: "common.Phase") -> None:
    world = marked(phase)
    world.stand(85.0)
    world.spent_s = {int(phase): 85.0}
    world.train(3)
    assert (world.incidents, world.phase) == ([], "running")


def test_rank_0_may_evaluate_alone_while_the_others_wait_for_it() -> None:
    world = marked(moving=frozenset({0}))
    world.hang(culprit=0)
    enter_phase(world, common.PHASE_FORWARD_BACKWARD, 1, 2, 3)
    world.stand(85.0)
    world.train(3)
    assert (world.incidents, world.phase) == ([], "running")


def test_a_rank_that_misses_the_call_of_the_evaluation_is_named_as_soon_as_ever() -> None:
    world = marked(moving=frozenset())
    world.hang(culprit=1)
    assert first_incident_after_s(world) == pytest.approx(DEADLINE_S, abs=0.3)
    assert list(world.incidents[0].verdict.culprits) == [1]
    assert world.incidents[0].verdict.kind == store.VERDICT_KIND_HUNG_COLLECTIVE


def test_an_evaluation_in_which_nothing_moves_is_reported_as_soon_as_ever() -> None:
    world = marked(moving=frozenset())
    assert first_incident_after_s(world) == pytest.approx(DEADLINE_S, abs=0.3)
    assert world.incidents[0].verdict.kind == store.VERDICT_KIND_STANDSTILL


def test_an_evaluation_that_hangs_in_the_middle_is_reported_a_deadline_after_its_last_move() -> None:
    world = marked()
    world.stand(50.0)
    world.moving = set()
    world.hang(culprit=2)
    assert first_incident_after_s(world) == pytest.approx(DEADLINE_S, abs=0.3)
    assert list(world.incidents[0].verdict.culprits) == [2]


def test_others_that_move_do_not_excuse_a_rank_that_hangs_while_they_wait_for_it() -> None:
    world = marked(moving=frozenset({0, 2, 3}))
    world.hang(culprit=1)
    assert first_incident_after_s(world) == pytest.approx(DEADLINE_S, abs=0.3)
    assert list(world.incidents[0].verdict.culprits) == [1]


@pytest.mark.parametrize("mode", [store.MODE_ACT, store.MODE_OBSERVE])
def test_an_evaluation_that_never_stops_computing_is_reported_long_before_the_restart(mode: "store.Mode") -> None:
    world = marked(moving=frozenset({3}), mode=mode)
    world.hang(culprit=3)
    assert first_incident_after_s(world) == pytest.approx(RESTART_S / 2, abs=0.3)
    assert list(world.incidents[0].verdict.culprits) == [3]


def test_the_restart_comes_when_it_came_before() -> None:
    for moving in (ALL, frozenset({1}), frozenset[int]()):
        world = marked(moving=moving)
        world.hang(culprit=1)
        assert restarted_after_s(world) == pytest.approx(RESTART_S, abs=0.5), moving


@pytest.mark.parametrize("how", ["nobody looked", "traced", "stopped"])
def test_only_what_was_seen_to_move_counts_as_work(how: str) -> None:
    world = marked(moving=ALL if how == "traced" else frozenset())
    world.hang(culprit=1)
    rank = world.rank(1)
    if how == "traced":
        rank.traced, rank.process_state = True, "t"
    elif how == "stopped":
        rank.process_state, rank.moved = "T", "cpu"
    else:
        world.tick()
        rank.still_s = -1000.0  # the tree cannot be read: nothing is known of it
    assert first_incident_after_s(world) <= DEADLINE_S + 0.3


def test_on_gpus_one_still_rank_among_spinning_ones_is_no_work() -> None:
    def on_gpus(moving: frozenset[int]) -> World:
        world = marked(moving=moving)
        for number in range(4):
            world.rank(number).device = "cuda:0"
            world.rank(number).recorders.add(source=common.RECORDER_SOURCE_NONE)
        return world

    assert first_incident_after_s(on_gpus(frozenset({0, 2, 3}))) == pytest.approx(DEADLINE_S, abs=0.3)
    assert first_incident_after_s(on_gpus(ALL)) == pytest.approx(RESTART_S / 2, abs=0.3)


def test_a_run_that_is_not_restarted_any_more_says_so_even_in_an_evaluation() -> None:
    world = marked()
    with edited_record(world) as record:
        record.uncertain_restarts, record.step_at_restart = 3, record.newest_step
    assert first_incident_after_s(world) == pytest.approx(DEADLINE_S, abs=0.3)
