"""What a run keeps as it ends."""

import pytest

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_FORWARD_BACKWARD, PHASE_IDLE
from tests.core.runs import end_ranks, hung, running
from tests.support.core_world import World


def sent(world: World) -> list[str | None]:
    kinds = [command.WhichOneof("kind") for _, command in world.commands]
    return [kind for kind in kinds if kind in ("persist_snapshot", "finish")]


def leave(world: World, phase: "common.Phase", *, ahead: int, steps_until: int | None = None) -> None:
    """Let all ranks leave training with code 0, ``ahead`` steps after the newest one that is reported.

    By default that is the end of their loop.
    """
    newest = world.state.record.newest_step
    if steps_until is None:
        steps_until = newest + ahead + 1
    for number in range(world.world_size):
        rank = world.rank(number)
        rank.progress.step, rank.progress.phase = newest + ahead, phase
        world.end(number, code=0, finished=True, steps_until=steps_until)
    world.until("finished")


def test_of_a_loop_that_was_left_inside_a_step_the_newest_snapshot_is_written_before_the_nodes_end() -> None:
    world = running(steps=8)
    newest = world.state.record.newest_step
    leave(world, PHASE_FORWARD_BACKWARD, ahead=1)
    assert sent(world)[:2] == ["persist_snapshot", "finish"]
    assert world.sent("persist_snapshot")[0].persist_snapshot.step == newest


@pytest.mark.parametrize(
    ("until", "later_steps", "kept"),
    [
        pytest.param(1000, 2, True, id="left early, its last state has no slot"),
        pytest.param(0, 2, True, id="names no end, its last state has no slot"),
        pytest.param(None, 2, False, id="at its end"),
        pytest.param(1000, 0, True, id="left early, and no slot could be pinned"),
        pytest.param(0, 0, True, id="names no end"),
    ],
)
def test_a_loop_that_may_not_have_taken_its_last_checkpoint_leaves_its_newest_snapshot(
    until: int | None, later_steps: int, kept: bool
) -> None:
    world = running(steps=8)
    snapshot = world.state.record.newest_step
    world.train(later_steps, snapshot=False)
    leave(world, PHASE_IDLE, ahead=0, steps_until=until)
    assert [command.persist_snapshot.step for command in world.sent("persist_snapshot")] == [snapshot] * kept


@pytest.mark.parametrize(("phase", "ahead"), [(PHASE_IDLE, 0), (PHASE_IDLE, 1), (common.PHASE_EVAL, 0)])
def test_a_loop_that_ended_has_taken_its_last_checkpoint_itself(phase: "common.Phase", ahead: int) -> None:
    world = running(steps=8)
    leave(world, phase, ahead=ahead)
    assert world.sent("persist_snapshot") == []


def test_a_snapshot_that_a_checkpoint_holds_is_not_written_again() -> None:
    world = running(steps=8)
    for node in world.node_states.values():
        node.checkpoints.append(world.state.record.newest_step)
    leave(world, PHASE_FORWARD_BACKWARD, ahead=1)
    assert world.sent("persist_snapshot") == []


def test_a_run_that_fails_keeps_its_newest_snapshot() -> None:
    world = running(steps=8)
    newest = world.state.record.newest_step
    for _ in range(20):
        if world.phase == "failed":
            break
        world.end(0, code=3)
        world.until("stopping")
        for _ in range(1000):
            world.tick()
            if world.phase in ("starting", "failed"):
                break
        if world.phase == "starting":
            world.train(1, snapshot=False)
    assert (world.phase, world.sent("persist_snapshot")[-1].persist_snapshot.step) == ("failed", newest)


def test_in_mode_observe_a_run_whose_ranks_are_all_dead_fails_with_the_cause() -> None:
    world = running(mode=store.MODE_OBSERVE, ranks_per_node=2)
    world.end(0, signal=9)
    world.stand(20.0)
    assert (world.phase, world.sent("finish"), len(world.incidents)) == ("running", [], 1)
    world.end(1, code=1, last_words="RuntimeError: Connection closed by peer")
    world.until("failed")
    outcome = world.state.record.outcome
    assert outcome.startswith("rank 0 was killed by SIGKILL")
    assert outcome.endswith("; all ranks have ended, and the mode of the run allows no restart")
    assert ([one.state for one in world.incidents], world.sent("stop")) == ([store.INCIDENT_STATE_FAILED], [])


def test_in_mode_observe_ranks_that_end_after_a_standstill_end_the_run_with_its_cause() -> None:
    world = hung(stood_s=5.0, mode=store.MODE_OBSERVE)
    assert [one.state for one in world.incidents] == [store.INCIDENT_STATE_STANDSTILL]
    end_ranks(world, *range(4), code=1, last_words="RuntimeError: Connection closed by peer")
    world.until("failed")
    assert "rank 1" in world.state.record.outcome
    assert world.state.record.outcome.endswith("; all ranks have ended, and the mode of the run allows no restart")
    assert [one.state for one in world.incidents] == [store.INCIDENT_STATE_FAILED]


def test_in_mode_observe_the_evidence_of_the_cause_is_waited_for() -> None:
    world = running(mode=store.MODE_OBSERVE, ranks_per_node=2, nodes=2)
    end_ranks(world, *range(4), signal=9)
    world.stand(5.0)
    assert world.phase == "running"
    world.stand(3.0)
    assert world.phase == "failed"
