"""Nodes that make replica snapshots as the core commands them, on a few nodes with two ranks each."""

from collections.abc import Sequence
from typing import Any

from holdfast_core.checkpointing.replicas import LOOK_S
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World
from tests.support.replica_nodes import commanded, offer

EVERY_S = 10.0
EVERY_STEPS = 5


def replicating(nodes: int = 3, domains: Sequence[str] = (), **options: Any) -> World:
    """Return a run that trains, and whose nodes can make replica snapshots: none has been commanded yet."""
    world = World(nodes=nodes, ranks_per_node=2, **options)
    world.spec.snapshot_every = EVERY_STEPS
    for number, node in enumerate(world.node_states.values()):
        offer(node, domains[number] if domains else "")
    world.until("starting")
    world.train(3)
    assert world.sent("replicate") == []
    world.spec.replicate_every_s = EVERY_S
    return world


def pass_time(world: World, seconds: float) -> None:
    """Let time pass in which the ranks train."""
    world.now += seconds
    world.train()


def look(world: World) -> None:
    """Let the leader look at all nodes."""
    pass_time(world, LOOK_S)


def newest(world: World) -> store.Replicate:
    """Return the newest command."""
    return commanded(world)[-1][1]


def learn(world: World, *names: str) -> None:
    """Let nodes know the newest command; by default all."""
    for name in names or world.node_states:
        world.node_states[name].replicas.wanted_step = newest(world).step
        world.node_states[name].replicas.failed = False


def held(step: int, *ranks: int, generation: int = 1, world_size: int = 4) -> store.HeldReplicas:
    """Return what a node holds of a step."""
    return store.HeldReplicas(step=step, generation=generation, ranks=ranks, world_size=world_size)
