"""Runs whose nodes are checked before they train."""

from typing import Any

from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World

GEMM = 50e9
"""Figure of a healthy node."""


def check(node: store.NodeState, *, ended_s: float, gemm: float = GEMM, failure: str = "", identity: str = "") -> None:
    """Let a node show a check."""
    node.check.Clear()
    node.check.id, node.check.ended_unix_s, node.check.took_s = identity, ended_s, 3.0
    node.check.figures.add(kind=store.CHECK_KIND_CPU_GEMM, value=gemm)
    if failure:
        node.check.failures.add(kind=store.CHECK_KIND_DISK, reason=failure)


def checked(nodes: int = 4, *, acts: bool = True, **options: Any) -> World:
    """Return a run that has not begun. All its nodes have passed their checks."""
    world = World(nodes=nodes, ranks_per_node=2, **options)
    world.spec.checks_nodes, world.spec.quarantines = True, acts
    for node in world.node_states.values():
        check(node, ended_s=world.now)
    return world


def add_spare(world: World, name: str) -> store.NodeState:
    """Let a further node be ready."""
    node = world.node_states[name] = store.NodeState(run="r", node=name, ready=True, stopped=True, instance="i")
    check(node, ended_s=world.now)
    return node


def reasons(world: World) -> dict[str, str]:
    """Return which nodes should not train, and why."""
    return {one.node: one.quarantine for one in world.state.record.node_histories if one.quarantine}


def story(world: World) -> list[str]:
    """Return the lines of the newest incident."""
    return [line.what for line in world.incidents[-1].actions]
