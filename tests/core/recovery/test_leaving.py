"""Runs that are stopped as planned."""

import pytest

from holdfast_core.model import StopRequest
from holdfast_core.tick import LEAD_S
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import end_ranks, running
from tests.support.core_world import World

GRACE_S = 30.0


def leaving(grace_s: float = GRACE_S) -> tuple[World, int]:
    """Return a run that is to stop, and the step after which it stops."""
    world = running()
    world.tick(StopRequest(grace_s=grace_s))
    assert world.phase == "leaving"
    return world, world.state.record.leave_step


def leave(world: World, step: int) -> None:
    while world.rank(0).progress.step < step:
        world.train()
    end_ranks(world, *range(world.world_size), code=0)
    world.tick()


def test_all_ranks_get_one_step_that_none_has_finished_when_the_command_arrives() -> None:
    world, step = leaving()
    assert {command.leave.step for command in world.sent("leave")} == {step}
    assert step >= world.rank(0).progress.step + LEAD_S / 0.3


def test_a_run_whose_ranks_have_left_is_over_and_its_nodes_succeed() -> None:
    world, step = leaving()
    leave(world, step)
    finish = world.sent("finish")[0].finish
    assert (world.phase, finish.outcome, finish.succeeded) == ("finished", f"stopped after step {step}", True)
    assert 0 < finish.patience_s < GRACE_S
    assert (world.state.record.left_step, world.incidents) == (step, [])


def test_a_node_that_goes_away_stops_the_whole_run() -> None:
    world = running()
    world.node_states["node0"].leave_in_s = GRACE_S
    world.tick()
    assert world.phase == "leaving"


def test_the_deadline_ends_a_run_that_has_not_stopped() -> None:
    world, _ = leaving()
    world.tick(seconds=GRACE_S + 1)
    finish = world.sent("finish")[0].finish
    assert (world.phase, finish.succeeded) == ("failed", False)
    assert "--preemption-grace-s" in finish.outcome
    assert not world.state.record.HasField("left_step")


def test_a_rank_that_dies_while_the_run_stops_is_reported_and_nothing_is_restarted() -> None:
    world, _ = leaving()
    starts = len(world.sent("start"))
    world.end(2, signal=9)
    world.tick()
    assert (world.phase, [list(incident.verdict.culprits) for incident in world.incidents]) == ("failed", [[2]])
    assert len(world.sent("start")) == starts


def test_a_run_that_is_being_restarted_stops_once_it_trains_again() -> None:
    world = running()
    world.end(2, signal=9)
    world.tick(StopRequest(grace_s=GRACE_S))
    assert world.phase != "leaving"
    world.until("starting")
    world.train()
    assert world.phase == "leaving"


def test_a_new_leader_continues_with_the_same_step_and_repeats_the_command() -> None:
    world, step = leaving()
    world.commands.clear()
    world.lose_leader()
    world.tick(seconds=3.0)
    assert {command.leave.step for command in world.sent("leave")} == {step}
    leave(world, step)
    assert world.phase == "finished"


def test_the_command_is_not_repeated_to_ranks_that_have_reached_the_step() -> None:
    world, step = leaving()
    while world.rank(0).progress.step < step:
        world.train()
    world.commands.clear()
    world.tick(seconds=3.0)
    assert world.sent("leave") == []


@pytest.mark.parametrize("grace_s", [0.0, GRACE_S])
def test_a_run_that_has_not_begun_ends_immediately(grace_s: float) -> None:
    world = World()
    world.node_states["node0"].ready = False
    world.tick(StopRequest(grace_s=grace_s))
    assert (world.phase, world.state.record.phase) == ("failed", store.RUN_PHASE_FAILED)
