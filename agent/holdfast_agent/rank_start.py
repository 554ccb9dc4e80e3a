"""Decides how a rank is started: its environment and its program. Does no I/O."""

from holdfast_agent.agent_options import AgentOptions
from holdfast_agent.checkpoints.restorer import StartingPoint
from holdfast_proto.left_out import from_messages
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1 import warm_parent_pb2 as parent_pb
from holdfast_proto.vocabulary import rolls_back


def fork_request(
    options: AgentOptions,
    spec: store.RunSpec,
    start: store.StartGeneration,
    *,
    generation: int,
    local_rank: int,
    rendezvous: str,
    point: StartingPoint,
) -> parent_pb.Fork:
    """Return the request that has the warm parent fork a rank.

    Args:
        start: the command that starts the generation.
        local_rank: index of the rank among those of this node.
        rendezvous: ``host:port`` of the generation's rendezvous store.
        point: state that the rank starts from.
    """
    rank = start.first_rank + local_rank
    host, _, port = rendezvous.rpartition(":")
    context = RankContext(
        run=spec.run,
        generation=generation,
        agent=f"unix:{options.session_socket}",
        black_box=str(options.black_box(generation, rank)),
        snapshot_every=spec.snapshot_every,
        checkpoint_every=spec.checkpoint_every,
        restore_slot=str(point.slots.get(rank, "")),
        restore_checkpoint=str(point.checkpoint or ""),
        faults_allowed=spec.injection_allowed,
        auto=spec.auto,
        left_out=from_messages(start.left_out),
        rolls_back=rolls_back(spec) and spec.mode == store.MODE_ACT,
        min_replicas=spec.min_replicas if spec.mode == store.MODE_ACT else 0,
        full_world_size=spec.nodes * spec.ranks_per_node,
    )
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(start.world_size),
        "LOCAL_WORLD_SIZE": str(start.ranks),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        # torch.distributed then uses the store that the warm parent serves. Without this, rank 0 would host the store,
        # and every other rank would lose it when rank 0 dies.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(generation),
        "TORCHELASTIC_RUN_ID": spec.run,
        **context.to_environment(),
    }
    return parent_pb.Fork(
        generation=generation,
        rank=rank,
        command=spec.command,
        environment=environment,
        log_path=str(options.rank_log(generation, rank)),
    )
