"""The account while nothing is heard of a run that trains on, as in an outage of the store, and after it."""

import pytest

from holdfast_core.accounting.ledger import CLOCK_SLACK_S, settled_time_use, time_use
from holdfast_proto.v1 import common_pb2 as common
from tests.core.accounting.test_ledger import report, step, trained, used
from tests.core.runs import enter_phase
from tests.support.core_world import World

SILENCE_S = 15
STEPS = 8
"""Steps of a second each that the run has trained before the silence."""


def about_to_fall_silent() -> World:
    """Return a run whose node reports its state with each tick, in the middle of a step."""
    world = trained(STEPS)
    for _ in range(3):
        publish(world)
        world.tick()
    return world


def publish(world: World, late_s: float = 0.0) -> None:
    """Let the node's newest state be one that it made ``late_s`` before the next tick."""
    world.node_states["node0"].reported_unix_s = world.now - late_s


def used_after(world: World, seconds: float) -> dict[str, float]:
    """Return the uses that a status shows some time after the last tick."""
    spent = time_use(world.state, world.now + seconds)
    assert sum(spent.values()) == pytest.approx(sum(time_use(world.state, world.now).values()) + seconds)
    return {use: each_s for use, each_s in spent.items() if each_s > 1e-6}


def end_silence(world: World) -> None:
    """Let the ranks be seen again: each has trained a step in each second."""
    for rank in range(world.world_size):
        world.rank(rank).stalled_s = -100.0
        world.rank(rank).steps_done += SILENCE_S
        world.rank(rank).progress.step += SILENCE_S
    world.tick(seconds=float(SILENCE_S))


def test_time_in_which_nothing_is_heard_is_what_the_run_did_last() -> None:
    training = about_to_fall_silent()
    before = used(training)["productive"]
    for seconds in (1.0, 4.0, 6.0, 15.0, 3600.0):
        assert used_after(training, seconds)["productive"] == pytest.approx(before + seconds)
    evaluating = about_to_fall_silent()
    enter_phase(evaluating, common.PHASE_EVAL)
    evaluating.tick()
    spent = used_after(evaluating, 15.0)
    assert spent["evaluation"] == pytest.approx(15.0)
    assert "idle" not in spent


def test_a_gap_is_still_undecided_when_the_run_is_seen_again() -> None:
    world = about_to_fall_silent()
    before = used(world)["productive"]
    end_silence(world)
    enter_phase(world, common.PHASE_EVAL)
    world.tick()
    world.tick()
    spent = used(world)
    assert (spent["productive"], spent["evaluation"]) == pytest.approx((before + SILENCE_S + 0.1, 0.1))
    assert "idle" not in spent
    assert settled_time_use(world.state)["productive"] == pytest.approx(float(STEPS))


@pytest.mark.parametrize("late_s", [0.0, 4.0, 14.5], ids=str)
def test_steps_that_are_told_late_are_productive_also_if_the_nodes_state_is_old(late_s: float) -> None:
    world = about_to_fall_silent()
    began = world.now - 0.3
    publish(world, late_s - SILENCE_S)
    end_silence(world)
    for number in range(SILENCE_S):  # the first alone, as the store may tell them
        report(world, STEPS + number, began + 1.0 + number)
        if not number:
            world.tick()
    world.tick()
    assert settled_time_use(world.state)["productive"] == pytest.approx(float(STEPS + SILENCE_S))
    assert "idle" not in used(world)


def test_a_new_leader_does_not_claim_that_the_run_idled_before_it() -> None:
    world = about_to_fall_silent()
    world.lose_leader()
    assert "idle" not in used_after(world, 30.0)


def test_ranks_that_are_seen_to_idle_do() -> None:
    world = about_to_fall_silent()
    enter_phase(world, common.PHASE_IDLE)
    world.tick()
    assert used_after(world, 4.0)["idle"] == pytest.approx(4.0)


def test_a_clock_that_is_set_back_is_learned_again() -> None:
    world = about_to_fall_silent()
    for _ in range(400):
        publish(world, 60.0)
        world.tick()
    lead_s = world.state.clock_leads_s["node0"]
    assert lead_s == pytest.approx(-60.0, abs=CLOCK_SLACK_S)
    step(world)
    used(world)
