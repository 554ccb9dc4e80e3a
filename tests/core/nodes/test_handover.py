"""Spares take the places of nodes that should not train, at a restart, and no step is lost for it."""

import signal

import pytest

from holdfast_core.nodes.handover import WRITE_PATIENCE_S
from holdfast_proto.v1 import store_pb2 as store
from tests.core.nodes.checked_nodes import add_spare, check, checked, story
from tests.core.nodes.test_quarantine import BROKEN, training
from tests.core.runs import edited_record, restart, send_event
from tests.support.core_world import World

KEPT = "node node1 should not train, and trains again: with a spare in its place steps would be lost"


def quarantined(*, acts: bool = True) -> World:
    """Return a run that trains, with a node in quarantine and a spare."""
    world = training(checked(acts=acts))
    world.train(5)
    add_spare(world, "spare")
    check(world.node_states["node1"], ended_s=world.now, failure=BROKEN)
    world.tick()
    return world


def stop(world: World) -> None:
    """Let a rank of another node end, and the leader stop all others."""
    world.end(0, code=1)
    world.until("stopping")
    world.tick()


def commit(world: World, step: int) -> None:
    """Let all nodes see a checkpoint."""
    for node in world.node_states.values():
        node.checkpoints.append(step)
    world.tick()


def test_the_node_writes_what_it_has_in_memory_before_a_spare_takes_its_place() -> None:
    world = quarantined()
    step = world.rank(0).snapshots[-1]
    stop(world)
    asked = {name for name, one in world.commands if one.HasField("persist_snapshot")}
    assert asked == {"node0", "node1", "node2", "node3"}
    world.stand(10.0)
    assert world.phase == "stopping"
    commit(world, step)
    assert world.phase == "starting"
    assert list(world.state.record.nodes) == ["node0", "spare", "node2", "node3"]
    assert (world.state.record.source, world.state.record.resumed_step) == (store.SOURCE_CHECKPOINT, step)
    assert "node spare takes the place of node1, which should not train" in story(world)


def test_if_the_run_does_not_start_with_the_spare_the_node_trains_again() -> None:
    world = quarantined()
    step = world.rank(0).snapshots[-1]
    stop(world)
    commit(world, step)
    assert "spare" in world.state.record.nodes
    broken = world.node_states["spare"]
    broken.failed_generation, broken.failure = world.state.record.generation, "the driver is broken"
    restart(world)
    assert list(world.state.record.nodes) == ["node0", "node1", "node2", "node3"]
    assert world.state.record.resumed_step == step
    assert "the spares have not trained: the run trains on with node1 again" in story(world)
    world.train(3)
    assert world.phase == "running" and not world.state.record.HasField("resize")


def test_a_spare_that_trains_stays() -> None:
    world = quarantined()
    stop(world)
    commit(world, world.rank(0).snapshots[-1])
    usual, moved = world.rank, world.node_states["spare"].ranks
    world.rank = lambda number: moved[number - 2] if number in (2, 3) else usual(number)  # type: ignore[method-assign]
    world.train(3)
    assert world.phase == "running" and not world.state.record.HasField("resize")
    world.end(0, code=1)
    restart(world)
    assert "spare" in world.state.record.nodes


def test_a_quarantine_that_is_only_reported_changes_nothing() -> None:
    world = quarantined(acts=False)
    stop(world)
    assert world.phase == "starting" and "node1" in world.state.record.nodes and not world.sent("persist_snapshot")


def test_if_the_checkpoint_fails_the_node_trains_again_from_memory() -> None:
    world = quarantined()
    step = world.rank(0).snapshots[-1]
    stop(world)
    send_event(world, checkpoint_failed=store.CheckpointFailed(step=step, reason="no space left on device"))
    world.until("starting")
    assert "node1" in world.state.record.nodes
    assert KEPT in [line.what for line in world.incidents[0].actions]
    assert (world.state.record.source, world.state.record.resumed_step) == (store.SOURCE_MEMORY, step)


def test_a_state_that_a_bad_loss_has_followed_is_never_written() -> None:
    world = quarantined()
    with edited_record(world) as record:
        record.loss_counts.nonfinite_since = world.rank(0).progress.step - 1
    stop(world)
    assert world.phase == "starting" and not world.sent("persist_snapshot")


def test_the_wait_for_the_checkpoint_is_bounded() -> None:
    world = quarantined()
    stop(world)
    began = world.now
    while world.phase == "stopping":
        world.tick(seconds=1.0)
    assert WRITE_PATIENCE_S <= world.now - began < WRITE_PATIENCE_S + 5.0
    assert "node1" in world.state.record.nodes and KEPT in story(world)


@pytest.mark.parametrize("obeys", [True, False])
def test_a_node_is_replaced_only_once_its_ranks_are_gone(obeys: bool) -> None:
    world = quarantined()
    for node in world.node_states.values():
        for rank in node.ranks:
            rank.snapshots.clear()
    world.obeys = obeys
    world.end(0, code=1)
    world.until("stopping", ticks=400)
    world.tick()
    assert ("node1" in world.state.record.nodes) != obeys  # nothing is in memory, so no step can be lost


def test_a_lost_node_needs_the_spare_more() -> None:
    world = quarantined()
    del world.node_states["node2"]
    restart(world)
    assert list(world.state.record.nodes) == ["node0", "node1", "spare", "node3"]


def test_a_node_whose_gpu_fails_its_check_gives_its_place_to_a_spare() -> None:
    world = training(checked())
    add_spare(world, "spare")
    step = world.rank(0).snapshots[-1]
    world.end(2, signal=signal.SIGABRT, gpu_fault=store.GpuFault(xid=79, fatal=True))
    world.until("stopping")
    world.tick()
    check(world.node_states["node1"], ended_s=world.now, failure="is gone", identity="0001-dead-rank")
    world.tick()
    commit(world, step)
    assert list(world.state.record.nodes) == ["node0", "spare", "node2", "node3"]
