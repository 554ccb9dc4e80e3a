"""The state of ranks that another launcher starts (``observe --restore``, torchrun): they wait for it.

Ranks of our own are started with their state. These exist before it is chosen. Each says in its hello that it waits.
Once all ranks of the world have said hello, the leader chooses the newest state that all of them can have, exactly as
for ranks of our own. The nodes prepare it and pass it on. If a node cannot, the ranks wait on, and the leader chooses
again.
"""

from holdfast_core import incidents
from holdfast_core.checkpointing import checkpoint_reads
from holdfast_core.recovery import new_generation
from holdfast_core.recovery.ending import RESEND_S
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store


def choose(tick: Tick) -> bool:
    """Choose the state for a world that waits for it. Return whether the world still waits, or is refused.

    Commands are repeated until all nodes have passed the state on.
    """
    record = tick.record
    if not tick.state.saves or not tick.ranks:
        return False
    if record.source == store.SOURCE_UNSPECIFIED:
        if not _all_wait(tick):
            return False  # ranks that are judged as those of any start
        new_generation.begin(tick)
        return True
    failed = next((node for node in _members(tick) if node.failed_generation == record.generation), None)
    if failed is not None:
        _choose_again(tick, failed.failure)
        return True
    behind = [node.node for node in _members(tick) if _waits(node) and node.restored_generation != record.generation]
    if behind and tick.now - tick.state.sent_unix_s > RESEND_S:
        new_generation.send_start(tick, behind)
    return False


def _members(tick: Tick) -> list[store.NodeState]:
    return list(tick.state.members.values())


def _waits(node: store.NodeState) -> bool:
    return any(rank.awaits_start for rank in node.ranks)


def _all_wait(tick: Tick) -> bool:
    ranks = tick.ranks
    return len(ranks) == tick.world_size and all(rank.awaits_start for rank in ranks.values())


def _choose_again(tick: Tick, reason: str) -> None:
    """Choose another state, or the same one later: a node could not prepare the one that was chosen."""
    if checkpoint_reads.may_be_unreadable(tick):
        return
    unread = checkpoint_reads.failure(tick)
    if unread:
        if checkpoint_reads.may_try_again(tick, unread):
            new_generation.begin(tick)
        return
    incidents.add_line_to_open(tick, f"generation {tick.record.generation} could not start: {reason}")
    tries = tick.record.restarts_without_progress + 1
    with tick.edit_record() as record:
        record.restarts_without_progress = tries
    if tries > tick.state.spec.restarts_without_progress:
        checkpoint_reads.refuse(tick, reason)
        return
    new_generation.begin(tick)
