"""Which of a rank's slots a snapshot goes into, and whether it may be pinned for a replica snapshot.

A slot that is pinned belongs to the agent. Of the others, the newest complete snapshot is what the rank can fall back
to while it copies, so a copy goes into another one.
"""

from collections.abc import Iterable, Sequence

from holdfast_hooks.snapshots.slot_requests import LEAST_SLOTS
from holdfast_proto.snapshot import Header, Slot, SlotState


def choose_slot(headers: Sequence[Header], *, restored: Sequence[bool], generation: int) -> int | None:
    """Return the slot to write next, the oldest that is neither pinned nor the newest complete snapshot, or None.

    The newest snapshot is the last one of this generation. Before its first one, it is the snapshot that was restored,
    else the one of the latest step. ``restored`` marks the slot from which this rank started.

    If all other slots are pinned, this is the newest one after all. The pinned snapshots are complete, and all ranks
    can fall back to them.
    """

    def age(index: int) -> tuple[bool, bool, bool, int, int]:
        header = headers[index]
        # A torn copy is worth nothing, so it counts as the oldest. An older generation may have come to a later step,
        # but since then the run has started again from an earlier one.
        complete = header.state is SlotState.COMPLETE
        own = header.generation == generation
        return complete, own, restored[index] and not own, header.generation, header.step

    by_age = sorted(range(len(headers)), key=age)
    others_are_pinned = len(headers) >= LEAST_SLOTS and all(_is_fallback(headers[index]) for index in by_age[:-1])
    if headers[by_age[-1]].state is SlotState.COMPLETE and not others_are_pinned:
        by_age.pop()
    return next((index for index in by_age if not headers[index].is_pinned), None)


def may_pin_replica(headers: Sequence[Header], index: int) -> bool:
    """Return whether the snapshot that goes into slot ``index`` may be pinned for a replica snapshot.

    No other slot may be pinned for one still, and the rank must keep LEAST_SLOTS that are not pinned: a partner that is
    slow costs neither checkpoints nor snapshots.
    """
    others = [header for number, header in enumerate(headers) if number != index]
    free = sum(not header.is_pinned for header in others)
    return free >= LEAST_SLOTS and not any(header.replica for header in others)


def _is_fallback(header: Header) -> bool:
    return header.is_pinned and header.state is SlotState.COMPLETE


def complete_slot(slots: Iterable[Slot], *, step: int, generation: int) -> Slot | None:
    """Return the slot with this generation's complete snapshot of ``step``, or None."""
    wanted = (SlotState.COMPLETE, step, generation)
    headers = ((slot, slot.header) for slot in slots)
    return next((slot for slot, one in headers if (one.state, one.step, one.generation) == wanted), None)
