"""Chooses the source of a rank's state: the slot or the checkpoint that the agent names."""

from collections.abc import Mapping
from pathlib import Path

from holdfast_hooks.restore.consensus import everywhere
from holdfast_hooks.restore.reshard import reshard
from holdfast_hooks.restore.slot_restore import fits, restore
from holdfast_hooks.state.encoding import Stateful, encode_state
from holdfast_hooks.state.own_state import OwnStates
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import Slot


def has_starting_point(context: RankContext) -> bool:
    """Return whether the agent names a state to start from."""
    return bool(context.restore_slot or context.restore_checkpoint)


def start_from(
    context: RankContext,
    state: Mapping[str, Stateful],
    *,
    rank: int,
    coordinates: Mapping[str, int],
    own: OwnStates | None = None,
) -> int:
    """Restore ``state``; return the step after which it was saved, or -1 if the run starts from the seed.

    Slots fit only the layout that wrote them, bit by bit. If any rank has another layout now, all ranks load the
    checkpoint instead. ``own``: parts of the hooks to restore, too.

    Raises ConfigurationError, SnapshotError and CheckpointUnreadable.
    """
    if not has_starting_point(context):
        return -1
    slot = Path(context.restore_slot) if context.restore_slot else None
    live = encode_state({name: stateful.state_dict() for name, stateful in state.items()})
    # Every rank asks, also one that has no choice: nodes may learn at different times that there is a checkpoint in
    # addition to the slots, and a rank that did not ask would leave the others waiting in the collective.
    slots_fit = everywhere(slot is not None and fits(slot, live, coordinates), live)
    if slot is not None and (slots_fit or not context.restore_checkpoint):
        return restore(slot, state, rank=rank, own=own)
    if slot is not None:
        with Slot(slot) as mapped:
            mapped.invalidate()  # else the next generation would start from it
    return reshard(Path(context.restore_checkpoint), state, rank=rank, own=own)
