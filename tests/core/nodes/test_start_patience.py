"""Starts of runs with nodes that should not train, or that have to be checked first."""

import signal

from holdfast_core.nodes.node_faults import CHECK_AGAIN_S
from holdfast_core.nodes.start_patience import CHECK_PATIENCE_S, SPARE_PATIENCE_S
from holdfast_proto.v1 import store_pb2 as store
from tests.core.nodes.checked_nodes import add_spare, check, checked, reasons, story
from tests.core.nodes.test_quarantine import BROKEN, training
from tests.core.runs import restart
from tests.support.core_world import World


def break_node(world: World, name: str) -> None:
    """Let the check of a node fail."""
    check(world.node_states[name], ended_s=world.now, failure=BROKEN)


def asked(world: World) -> list[tuple[str, str]]:
    """Return which nodes were asked for which check."""
    return [(name, one.check_node.id) for name, one in world.commands if one.HasField("check_node")]


def test_a_run_begins_with_the_nodes_that_may_train() -> None:
    world = checked()
    break_node(world, "node1")
    add_spare(world, "spare")
    world.until("starting")
    assert list(world.state.record.nodes) == ["node0", "node2", "node3", "spare"]


def test_without_another_node_it_waits_and_then_begins_with_all_of_them() -> None:
    world = checked()
    break_node(world, "node1")
    began = world.now
    world.until("starting")
    assert world.now - began >= SPARE_PATIENCE_S
    assert list(world.state.record.nodes) == ["node0", "node1", "node2", "node3"]
    assert "node1" in reasons(world)


def test_a_lost_node_gets_the_good_spare_and_one_in_quarantine_trains_on() -> None:
    world = training(checked())
    break_node(world, "node1")
    add_spare(world, "spare")
    del world.node_states["node2"]
    restart(world)
    assert list(world.state.record.nodes) == ["node0", "node1", "spare", "node3"]


def test_a_spare_in_quarantine_is_better_than_no_node() -> None:
    world = training(checked())
    add_spare(world, "spare")
    break_node(world, "spare")
    del world.node_states["node2"]
    restart(world)
    assert "spare" in world.state.record.nodes


def test_the_first_death_on_a_node_needs_no_check_and_the_second_does() -> None:
    world = training(checked(acts=False))
    world.end(2, signal=signal.SIGSEGV)
    restart(world)
    assert not asked(world)
    world.train(3)
    world.end(3, signal=signal.SIGSEGV)
    world.until("stopping")
    world.tick()
    assert asked(world) == [("node1", "0002-dead-rank")]
    world.stand(5.0)
    assert world.phase == "stopping" and len(set(asked(world))) == 1
    assert "node node1 is checked before its ranks start again" in story(world)
    check(world.node_states["node1"], ended_s=world.now, identity="0002-dead-rank")
    world.tick()
    assert world.phase == "starting"
    world.train(3)
    world.end(3, signal=signal.SIGSEGV)
    restart(world)
    assert asked(world)[-1][1] == "0002-dead-rank"  # that was a moment ago
    world.train(3)
    world.now += CHECK_AGAIN_S
    world.end(3, signal=signal.SIGSEGV)
    world.until("stopping")
    world.tick()
    assert asked(world)[-1][1] == "0004-dead-rank"


def lose_gpu(world: World) -> None:
    """End a rank of node1 because of its GPU, and let the leader ask for a check."""
    world.end(2, signal=signal.SIGABRT, gpu_fault=store.GpuFault(xid=79, fatal=True))
    world.until("stopping")
    world.tick()
    assert asked(world) == [("node1", "0001-dead-rank")]


def test_the_wait_for_a_check_is_bounded() -> None:
    world = training(checked())
    lose_gpu(world)
    began = world.now
    world.until("starting")
    assert world.now - began >= CHECK_PATIENCE_S - 1.0
    assert "node node1 has not answered with its check: it trains again" in story(world)


def test_a_run_without_checks_asks_for_none() -> None:
    world = checked()
    world.spec.checks_nodes = False
    training(world)
    world.end(2, signal=signal.SIGABRT, gpu_fault=store.GpuFault(xid=79, fatal=True))
    restart(world)
    assert not asked(world)
