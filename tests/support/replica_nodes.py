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
                _hold(world.node_states[holder].replicas, step, world.state.record.generation, ranks[name])
            known = world.node_states[name].replicas
            known.wanted_step = known.replicated_step = step
    return step


def _hold(replicas: store.NodeReplicas, step: int, generation: int, ranks: list[int]) -> None:
    same = [one for one in replicas.held if (one.step, one.generation) == (step, generation)]
    (same or [replicas.held.add(step=step, generation=generation)])[0].ranks.extend(ranks)
