"""Nodes of a world for the core that make and take replica snapshots."""

from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World


def offer(node: store.NodeState, domain: str = "") -> None:
    """Let a node take replica snapshots."""
    node.replicas.address, node.replicas.failure_domain = f"{node.node}:7000", domain


def commanded(world: World) -> list[tuple[str, store.Replicate]]:
    """Return all commands to make replica snapshots, with their nodes."""
    return [(name, command.replicate) for name, command in world.commands if command.HasField("replicate")]


def replicate(world: World) -> int:
    """Let all nodes make what was commanded last, and send it to their partners; return its step."""
    step = commanded(world)[-1][1].step
    ranks = {name: [rank.rank for rank in node.ranks] for name, node in world.node_states.items()}
    for name, made in commanded(world):
        if made.step == step:
            for holder in (name, made.partner):
                _hold(world, world.node_states[holder].replicas, step, ranks[name])
            known = world.node_states[name].replicas
            known.wanted_step = known.replicated_step = step
    return step


def _hold(world: World, replicas: store.NodeReplicas, step: int, ranks: list[int]) -> None:
    generation, world_size = world.state.record.generation, world.state.world_size
    same = [one for one in replicas.held if (one.step, one.generation) == (step, generation)]
    (same or [replicas.held.add(step=step, generation=generation, world_size=world_size)])[0].ranks.extend(ranks)
