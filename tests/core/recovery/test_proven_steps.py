"""A checkpoint is proven by a finite loss of a later step, and only by that."""

import math
from typing import Any

import pytest

from holdfast_core.checkpointing.proven_steps import OPEN_KEPT
from holdfast_proto.v1 import store_pb2 as store
from tests.core.recovery.test_loss_policy import report, running
from tests.core.runs import send_event
from tests.support.core_world import World

NAN = math.nan


def step_done(world: World, loss: float | None = None, **numbers: Any) -> int:
    """Let the only rank finish a step, and return its number."""
    report(world, loss, **numbers)
    return world.rank(0).progress.step - 1


def commit(world: World, step: int) -> None:
    generation = world.state.record.generation
    committed = store.CheckpointCommitted(step=step)
    send_event(world, generation=generation, checkpoint_committed=committed, seconds=0.01)


def proven(world: World) -> list[tuple[int, int]]:
    """Return the marked steps, each with the step whose finite loss has proven it."""
    commands = [command.prove_checkpoint for command in world.sent("prove_checkpoint")]
    return [(command.step, command.finite_step) for command in commands]


def test_the_newest_checkpoint_from_before_a_finite_loss_is_marked_once() -> None:
    world = running()
    first = step_done(world)
    commit(world, first)
    second = step_done(world)
    commit(world, second)
    assert proven(world) == [], "no loss says anything of them"
    third = step_done(world, 2.0)
    commit(world, third)
    assert proven(world) == [(second, third)], "its own loss says nothing of the state after a step"
    fourth = step_done(world, 2.0)
    assert proven(world) == [(second, third), (third, fourth)]
    step_done(world, 2.0)
    assert len(proven(world)) == 2


def test_a_checkpoint_that_took_long_is_marked_when_it_is_committed() -> None:
    world = running()
    slow = step_done(world, 2.0)
    finite = step_done(world, 2.0)
    assert proven(world) == []
    commit(world, slow)
    assert proven(world) == [(slow, finite)]


def test_a_loss_that_is_not_finite_proves_nothing() -> None:
    world = running()
    step = step_done(world, 2.0)
    commit(world, step)
    step_done(world, NAN)
    step_done(world)
    step_done(world, 1.0, nonfinite=[store.NonFinite(rank=0, quantity="loss")])  # another rank's is finite
    assert proven(world) == []


def test_losses_of_the_generation_before_prove_nothing_of_steps_that_are_done_again() -> None:
    world = running()
    kept = step_done(world, 2.0)
    for _ in range(3):
        step_done(world, 2.0)
    world.rank(0).snapshots[:] = [kept]
    world.end(0, signal=9)
    world.until("starting")
    assert world.state.record.resumed_step == kept
    world.train(1)
    again = step_done(world)
    commit(world, again)
    assert proven(world) == [], "the earlier loss of a later step is of another state"
    finite = step_done(world, 2.0)
    assert proven(world) == [(again, finite)]


def test_a_run_that_reports_no_loss_remembers_a_bounded_number_of_checkpoints() -> None:
    world = running()
    steps = [step_done(world) for _ in range(OPEN_KEPT + 10)]
    for step in steps:
        commit(world, step)
    assert list(world.state.record.proven.open) == [steps[0], *steps[1 - OPEN_KEPT :]]
    finite = step_done(world, 2.0)
    assert proven(world) == [(steps[-1], finite)]
    assert not world.state.record.proven.open


@pytest.mark.parametrize(("action", "is_recorded"), [("notify", True), ("note", False)])
def test_a_bad_end_tells_the_agents_which_checkpoints_are_in_doubt(action: str, is_recorded: bool) -> None:
    world = running({"non_finite": (action, 10)})
    last = step_done(world, 2.0)
    step_done(world, NAN)
    world.end(0, code=0)
    world.until("finished")
    (finish, *_) = world.sent("finish")
    assert finish.finish.HasField("bad_loss") is is_recorded
    assert finish.finish.succeeded is not is_recorded
    if is_recorded:
        assert finish.finish.bad_loss.from_step == last


def test_a_healthy_end_leaves_no_doubt() -> None:
    world = running()
    step_done(world, NAN)
    step_done(world, 2.0)
    world.end(0, code=0)
    world.until("finished")
    assert not world.sent("finish")[0].finish.HasField("bad_loss")


def restarted(world: World) -> int:
    """Let the rank die at a bad loss, and return the step after which the next generation continues."""
    generation = world.state.record.generation
    step_done(world, NAN)
    world.end(0, code=1)
    while world.state.record.generation == generation:
        world.tick(seconds=0.1)
    return world.state.record.resumed_step


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_the_second_restart_at_a_bad_loss_leaves_states_alone_that_no_finite_loss_has_followed(
    has_checkpoint: bool,
) -> None:
    world = running()
    good = step_done(world, 2.0)
    if has_checkpoint:
        world.node_states["node0"].checkpoints.append(good)
    newest = [step_done(world, 2.0) for _ in range(3)][-1]
    world.rank(0).snapshots[:] = [newest]
    assert restarted(world) == newest, "one bad batch is no reason to undo steps"
    world.train(1, loss=NAN)
    world.rank(0).snapshots[:] = [newest]
    assert restarted(world) == (good if has_checkpoint else newest)
    story = [action.what for action in world.state.incidents[max(world.state.incidents)].actions]
    said = [line for line in story if "because no finite loss has followed the newer states" in line]
    assert len(said) == has_checkpoint, story
