"""The state for a world of another size than the one before: it is written as a checkpoint first, if it is in memory.

Ranks of another number have other parts of the state. Each of them can read what it needs of a checkpoint.
"""

from dataclasses import replace

from holdfast_core import incidents
from holdfast_core.checkpointing.restore_point import RestorePoint
from holdfast_core.model import committed_steps
from holdfast_core.recovery import new_generation
from holdfast_core.recovery.ending import RESEND_S
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

WRITE_PATIENCE_S = 1800.0
"""Longest wait for the checkpoint of a change. Who gives up too early loses steps, or stays without a node."""
WRITE_AGAIN_S = 30.0
"""Pause before a write that has failed is tried again, if there is no other state."""


def resize(tick: Tick) -> bool:
    """Prepare the state for a world that another launcher has made larger or smaller than the one before.

    Return whether it can be chosen now.
    """
    before, changes = tick.record.trained_world_size, tick.record.resize.world_size > 0
    if before in (0, tick.world_size):
        if changes:
            with tick.edit_record() as record:
                record.ClearField("resize")
        return True
    if not changes:
        begin(tick, before, new_generation.choose(tick, before))
    return has_state(tick)


def begin(tick: Tick, world_size: int, point: RestorePoint | None) -> None:
    """Begin a change from a world of ``world_size`` ranks, whose newest state is ``point``."""
    with tick.edit_record() as record:
        record.ClearField("resize")  # it was to grow
        record.resize.world_size, record.resize.since_unix_s = world_size, tick.now
        record.resize.generation = record.generation
        if point is not None and point.source in (store.SOURCE_REPLICA, store.SOURCE_MEMORY):
            record.resize.step = point.step
            record.resize.snapshot_generation = point.replica_generation or _generation_of(tick, point.step)
    tick.state = replace(tick.state, sent_unix_s=0.0)


def _generation_of(tick: Tick, step: int) -> int:
    """Return the generation that has trained a step. Slots of the same step and an earlier one are of a line undone."""
    record = tick.record
    later = (start.generation for start in record.line.starts if start.step < step)
    return max(later, default=record.trained_generation)


def has_state(tick: Tick) -> bool:
    """Return whether the state from which the world of another size is to start can be read.

    If it is in the memory of the nodes that are left, they write it as a checkpoint. All nodes must be here, without
    ranks. If it cannot be written, the newest checkpoint serves, if there is one.
    """
    resize = tick.record.resize
    if not (resize.world_size and resize.HasField("step")) or resize.step in committed_steps(tick.state):
        return True
    if resize.failed or tick.now - resize.since_unix_s > WRITE_PATIENCE_S:
        return _do_without(tick)
    if tick.now - tick.state.sent_unix_s > RESEND_S:
        shares = _shares(tick)
        if shares is None:
            return _do_without(tick)
        say(tick, f"the snapshots of step {resize.step} are written as a checkpoint, to start from")
        message = {
            node: store.PersistReplicas(
                step=resize.step, generation=resize.snapshot_generation, world_size=resize.world_size, ranks=ranks
            )
            for node, ranks in shares.items()
        }
        tick.send(message, lambda node: store.NodeCommand(persist_replicas=message[node]))
    return False


def _do_without(tick: Tick) -> bool:
    """Give up the state that cannot be written; return whether there is another one to start from."""
    step, others = tick.record.resize.step, committed_steps(tick.state)
    instead = "an older state is used" if others else "it is tried again"
    say(tick, f"the snapshots of step {step} cannot be written as a checkpoint: {instead}")
    with tick.edit_record() as edited:
        edited.resize.failed = False
        if others:
            edited.resize.ClearField("step")
        else:  # the seed is never taken instead
            edited.resize.since_unix_s = tick.now
    tick.state = replace(tick.state, sent_unix_s=tick.now + WRITE_AGAIN_S)
    return bool(others)


def _shares(tick: Tick) -> dict[str, list[int]] | None:
    """Return which node writes the shards of which ranks; None if there are ranks that no node holds any more.

    Every node is named: ranks that wait for the state hear from it that it is on its way.
    """
    resize, members = tick.record.resize, tick.state.members
    wanted = resize.step, resize.snapshot_generation
    holders: dict[int, list[str]] = {}
    in_memory: dict[int, list[str]] = {}
    for name, node in members.items():
        held = {rank for one in node.replicas.held if (one.step, one.generation) == wanted for rank in one.ranks}
        for rank in held:
            holders.setdefault(rank, []).append(name)
        in_memory.update({rank.rank: [name] for rank in node.ranks if resize.step in rank.snapshots})
    holders = {**{rank: names for rank, names in in_memory.items() if rank < resize.world_size}, **holders}
    if len(holders) < resize.world_size:
        return None
    shares: dict[str, list[int]] = {name: [] for name in members}
    for rank in range(resize.world_size):
        shares[min(holders[rank], key=lambda name: len(shares[name]))].append(rank)
    return shares


def say(tick: Tick, what: str) -> None:
    """Add a line to the open incident, once in a generation."""
    if tick.once(what):
        incidents.add_line_to_open(tick, what)
