"""Runs whose hooks attach by themselves: numbers begin anew, phases are guessed, and Holdfast restores nothing."""

from dataclasses import replace

import pytest

from holdfast_core.model import present_step
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import enter_phase, running
from tests.support.core_world import World

ALL = frozenset(range(4))
LIMIT = 2
"""Restarts without a new step that the world's run allows."""


def automatic(*, moving: frozenset[int] = frozenset()) -> World:
    world = running()
    world.spec.auto = True
    world.state = replace(world.state, spec=world.spec)
    world.moving = set(moving)
    return world


def train(world: World, steps: int) -> None:
    world.train(steps, snapshot=False)


def crash(world: World) -> None:
    """End a rank by an error of its own, and wait for what the core does."""
    for number in range(4):
        world.rank(number).snapshots[:] = []
    world.end(1, code=1, last_words="ValueError: bad sample")
    generation = world.state.record.generation
    for _ in range(600):
        world.tick()
        if world.phase == "failed" or world.state.record.generation > generation:
            return
    raise AssertionError(world.phase)


def restart(world: World, steps: int) -> None:
    """Crash, and do some steps in the next generation."""
    crash(world)
    assert world.phase == "starting", world.state.record.outcome
    for number in range(4):
        assert world.rank(number).progress.step == 0
    train(world, steps)


def test_a_run_goes_on_however_few_steps_each_of_its_generations_counts() -> None:
    world = automatic()
    train(world, 60)
    for steps in (40, 25, 12, 30, 5):
        restart(world, steps)
        assert (world.phase, present_step(world.state)) == ("running", steps - 1)


def test_a_fault_that_comes_back_after_as_many_steps_ends_the_run() -> None:
    world = automatic()
    train(world, 60)
    restart(world, 10)  # from the script's own checkpoint
    restart(world, 10)
    restart(world, 9)  # a killed rank may take the report of one step with it
    restart(world, 10)
    crash(world)
    assert (world.phase, world.state.record.restarts_total) == ("failed", LIMIT + 2)


def test_a_generation_without_a_step_counts_as_one_that_brought_nothing() -> None:
    world = automatic()
    train(world, 60)
    for _ in range(LIMIT + 1):
        crash(world)
    crash(world)
    assert world.phase == "failed"


def test_nobody_says_how_many_steps_were_lost_or_repeated() -> None:
    world = automatic()
    train(world, 60)
    restart(world, 10)
    (incident,) = world.incidents
    assert (incident.state, incident.lost_unknown, incident.lost_steps) == (store.INCIDENT_STATE_RECOVERED, True, 0)
    assert any("starts from what the script itself restores" in action.what for action in incident.actions)
    assert world.state.record.time_use.settled_s["repeated_steps"] == 0.0


def test_a_run_that_has_snapshots_after_all_is_restored_and_counts_on() -> None:
    world = automatic()
    world.train(20)
    newest = world.state.record.newest_step
    world.end(1, code=1, last_words="ValueError: bad sample")
    world.until("starting")
    assert world.rank(0).progress.step == newest + 1
    assert not world.state.record.counts_anew


def test_ranks_that_work_while_nobody_waits_are_no_news_in_a_phase_that_is_only_a_guess() -> None:
    world = automatic(moving=ALL)
    train(world, 3)
    world.stand(80.0)
    assert world.incidents == []
    marked_by_the_script = running()
    marked_by_the_script.moving = set(ALL)
    marked_by_the_script.stand(80.0)
    assert marked_by_the_script.incidents


@pytest.mark.parametrize("culprit", [None, 0])
def test_ranks_that_work_are_never_restarted_for_time_alone(culprit: int | None) -> None:
    world = automatic(moving=ALL if culprit is None else frozenset({culprit}))
    if culprit is not None:
        world.hang(culprit)
    world.stand(1200.0)
    assert world.phase == "running"
    assert [one.state for one in world.incidents] == [store.INCIDENT_STATE_STANDSTILL]  # it is reported, in the end


def test_a_rank_that_others_wait_for_and_that_does_nothing_is_restarted_as_ever() -> None:
    world = automatic()
    enter_phase(world, common.PHASE_FORWARD_BACKWARD)
    world.hang(2)
    world.stand(20.0)
    assert (list(world.incidents[0].verdict.culprits), world.state.record.restarts_total) == ([2], 1)
