"""Which ranks of an observed run may be ended when it hangs."""

from collections.abc import Mapping

from holdfast_daemon.core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store


def of_culprits(tick: Tick, verdict: store.Verdict) -> list[store.EndedRank]:
    """Return the culprits that can be ended: those that live, and whose process is known for sure."""
    node_of = _node_of(tick)
    return [_target(tick.ranks[rank], node_of[rank]) for rank in verdict.culprits if rank in node_of]


def stand_in(tick: Tick) -> list[store.EndedRank]:
    """Return the first rank that can be ended, if any. Launchers end or restart all ranks when one of them ends."""
    node_of = _node_of(tick)
    return [_target(tick.ranks[rank], node_of[rank]) for rank in sorted(node_of)[:1]]


def _node_of(tick: Tick) -> Mapping[int, str]:
    """Return rank -> node of those that can be ended."""
    generation = tick.record.generation
    return {
        rank.rank: name
        for name, node in tick.state.members.items()
        if node.generation == generation
        for rank in node.ranks
        if rank.start_ticks and rank.pid and rank.life == store.LIFE_RUNNING
    }


def _target(rank: store.RankState, node: str) -> store.EndedRank:
    return store.EndedRank(
        rank=rank.rank, pid=rank.pid, start_ticks=rank.start_ticks, stalled_s=rank.stalled_s, node=node
    )
