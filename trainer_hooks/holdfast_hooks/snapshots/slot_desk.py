"""Asks the agent for slots: the training thread says how large, the reporter asks and receives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from holdfast_hooks.once import OnceLog
from holdfast_hooks.snapshots.slot_memory import SlotPreparation
from holdfast_proto.snapshot import Slot, SnapshotError
from holdfast_proto.v1.session_pb2 import SlotGrant, SlotRequest

LEAST_SLOTS = 2
"""They take turns, so that the newest snapshot stays complete during the next copy. While a checkpoint pins one of two,
each snapshot overwrites the one before: the pinned one is complete too."""
ASK_AGAIN_S = 30.0
"""Time after a refusal until the next request. A shortage of memory or descriptors on the node may have ended."""


@dataclass(frozen=True)
class GrantedSlots:
    """Slots that the agent has granted to this rank, mapped."""

    slots: tuple[Slot, ...]
    on_disk: bool
    """Whether they are files on a disk and not in shared memory."""
    files: tuple[tuple[str, int, int], ...]
    """Path, inode and size of each slot. A repeated grant of the same files is no new grant."""

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of the smallest slot."""
        return min(slot.nbytes for slot in self.slots)


class SlotDesk:
    """Passes the need for slots from the training thread to the reporter, and the granted slots back.

    Only one thread writes each field, so that neither waits for the other.
    """

    def __init__(self, once: OnceLog) -> None:
        self.needed_bytes = 0
        """Bytes per slot that the training thread lacks; 0 if the slots are large enough. It alone writes this."""
        self.needed_slots = LEAST_SLOTS
        """Number of slots that the training thread wants. It alone writes this."""
        self.gpu: int | None = None
        """Index of a GPU that will copy into the slots; None: none, or not known yet. The training thread alone writes
        this."""
        self.grant: GrantedSlots | None = None
        self.refusal = ""
        """Reason why there are no slots; empty if there may be. The reporter alone writes this."""
        self._requested = SlotRequest()
        self._ask_at_s = 0.0
        """Monotonic time of the next request after a refusal."""
        self._preparation: SlotPreparation | None = None
        self._closed = False
        self._once = once

    def next_request(self) -> SlotRequest | None:
        """Return the request to send now, or None (reporter thread). Slots that a GPU turns out to need are locked."""
        if self.gpu is not None and self._preparation is not None and self.grant is not None:
            self._preparation.lock_for(self.gpu, self.grant.slots)
        held = self._held()
        needed = SlotRequest(bytes_per_slot=max(self.needed_bytes, held.bytes_per_slot), slots=self.needed_slots)
        is_more = needed.bytes_per_slot > max(held.bytes_per_slot, self._requested.bytes_per_slot)
        are_more = held.slots > 0 and needed.slots > max(held.slots, self._requested.slots)
        if monotonic() < self._ask_at_s or not (is_more or are_more):
            return None
        self._requested = needed
        return needed

    def _held(self) -> SlotRequest:
        """Return the request that the granted slots would answer. Slots on disk are never too few."""
        if self.grant is None:
            return SlotRequest()
        slots = self.needed_slots if self.grant.on_disk else len(self.grant.slots)
        return SlotRequest(bytes_per_slot=self.grant.bytes_per_slot, slots=slots)

    def forget_request(self) -> None:
        """Forget the request, because another agent got it (reporter thread)."""
        self._requested = SlotRequest()

    def receive(self, grant: SlotGrant) -> None:
        """Map the slots that the agent grants, or keep the reason for its refusal (reporter thread)."""
        if self._closed:
            return
        if not grant.paths:
            self.refusal = grant.reason or "the agent has no memory for snapshots"
            self._once.warn(f"this rank takes no snapshots, and asks again every {ASK_AGAIN_S:.0f} s", self.refusal)
            self._ask_later()
            return
        try:
            files = _identify(grant.paths)
            if self.grant is None or self.grant.files != files:
                self.grant = GrantedSlots(tuple(Slot(Path(path)) for path in grant.paths), grant.on_disk, files)
                if self._preparation is not None:
                    self._preparation.stop(timeout_s=0)
                if not grant.on_disk:
                    self._preparation = SlotPreparation(self.grant.slots, self._once)
            self.refusal = ""
        except (OSError, RuntimeError, SnapshotError) as error:  # RuntimeError: no thread can be started
            self._once.warn(f"granted snapshot slots cannot be opened, next try in {ASK_AGAIN_S:.0f} s", error)
            self._ask_later()

    def _ask_later(self) -> None:
        self.forget_request()
        self._ask_at_s = monotonic() + ASK_AGAIN_S

    def close(self, timeout_s: float) -> None:
        """Take no more slots; wait for up to ``timeout_s`` for the thread that still prepares some.

        For the training thread, after the end of the reporter.
        """
        self._closed = True
        if self._preparation is not None:
            self._preparation.stop(timeout_s)

    def give_up_slots(self) -> None:
        """Give up the slots after :meth:`close`. They are unmapped once nothing views them any more.

        If a GPU has locked them, that waits for its work. Do not call this in a rank whose GPU may hang.
        """
        self.grant = None


def _identify(paths: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    found = ((path, Path(path).stat()) for path in paths)
    return tuple((path, status.st_ino, status.st_size) for path, status in found)
