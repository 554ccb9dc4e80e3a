"""A world that seems to stand still: before anybody is judged, what all ranks hold in memory is made durable.

No new snapshot can be had from a rank that hangs; the newest one that all hold is still good.
"""

from holdfast_daemon.core.restore import newest_common_snapshot
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store

SUSPECT_RATIO = 0.7
"""Of the deadline at which a stalled rank is judged."""

EVERY_S = 60.0
"""A suspicion may be wrong, and a checkpoint costs something."""


def persist_if_suspected(turn: Turn) -> None:
    """Have the newest common snapshot written if every rank that lives has stalled for most of its deadline."""
    if turn.now - turn.state.suspected_unix_s < EVERY_S or not _stands_still(turn):
        return
    step = newest_common_snapshot(turn.state.nodes, turn.world_size)
    committed = max((known for node in turn.state.nodes.values() for known in node.checkpoints), default=-1)
    if step > committed:
        turn.update(suspected_unix_s=turn.now)
        order = store.PersistSnapshot(step=step)
        turn.send(turn.record.nodes, lambda _: store.NodeCommand(persist_snapshot=order))


def _stands_still(turn: Turn) -> bool:
    ranks = [rank for rank in turn.ranks.values() if rank.life != store.LIFE_EXITED]
    deadlines = turn.state.deadlines
    return bool(ranks) and all(
        rank.stalled_s > SUSPECT_RATIO * deadlines.deadline_s(rank.progress.phase, rank.steps_done) for rank in ranks
    )
