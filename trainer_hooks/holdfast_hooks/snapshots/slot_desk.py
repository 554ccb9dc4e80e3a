"""Asking the agent for snapshot memory, between the training thread and the reporter."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_hooks.once import OnceLog
from holdfast_hooks.snapshots.slot_memory import SlotPreparation
from holdfast_hooks.step_commands import ReleaseCommands
from holdfast_proto.snapshot import Slot, SnapshotError
from holdfast_proto.v1.session_pb2 import SlotGrant, SlotRequest

LEAST_SLOTS = 2
"""They take turns. Only beside a pinned one the newest snapshot itself is written to."""


@dataclass(frozen=True)
class GrantedSlots:
    """Slots that a rank may use."""

    slots: tuple[Slot, ...]
    on_disk: bool
    files: tuple[tuple[str, int, int], ...]
    """Path, inode and size of each slot: tells whether a repeated grant means the same files."""

    @property
    def bytes_per_slot(self) -> int:
        """Size of the smallest slot."""
        return min(slot.nbytes for slot in self.slots)


class SlotDesk:
    """The training thread says how much it needs, the reporter asks for it and brings the slots.

    Each field is written by one thread only, so that neither waits for the other.
    """

    def __init__(self, once: OnceLog) -> None:
        self.needed_bytes = 0
        """Per slot; written by the training thread."""
        self.needed_slots = LEAST_SLOTS
        """Written by the training thread."""
        self.releases = ReleaseCommands()
        self.grant: GrantedSlots | None = None
        self.refusal = ""
        """Why there will be no slots; written by the reporter."""
        self._requested = SlotRequest()
        self._preparation: SlotPreparation | None = None
        self._closed = False
        self._once = once

    def next_request(self) -> SlotRequest | None:
        """Return what to ask for now, or None (reporter thread)."""
        held = self._held()
        needed = SlotRequest(bytes_per_slot=max(self.needed_bytes, held.bytes_per_slot), slots=self.needed_slots)
        is_more = needed.bytes_per_slot > max(held.bytes_per_slot, self._requested.bytes_per_slot)
        are_more = held.slots > 0 and needed.slots > max(held.slots, self._requested.slots)
        if self.refusal or not (is_more or are_more):
            return None
        self._requested = needed
        return needed

    def _held(self) -> SlotRequest:
        """Return what would have to be asked for to get what is there; slots on disk are never too few."""
        if self.grant is None:
            return SlotRequest()
        slots = self.needed_slots if self.grant.on_disk else len(self.grant.slots)
        return SlotRequest(bytes_per_slot=self.grant.bytes_per_slot, slots=slots)

    def forget_request(self) -> None:
        """The agent is a new one: what the old one was asked for counts no more (reporter thread)."""
        self._requested = SlotRequest()

    def receive(self, grant: SlotGrant) -> None:
        """Take what the agent grants (reporter thread)."""
        if self._closed:
            return
        if not grant.paths:
            self.refusal = grant.reason or "the agent has no memory for snapshots"
            self._once.warn("no snapshots", self.refusal)
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
        except (OSError, SnapshotError) as error:
            self._once.warn("granted snapshot slots cannot be opened", error)

    def close(self, timeout_s: float) -> None:
        """Give up the slots (training thread). They are unmapped when nobody views them any more.

        Waits for up to ``timeout_s`` for the thread that still makes them ready.
        """
        self._closed = True
        self.grant = None
        if self._preparation is not None:
            self._preparation.stop(timeout_s)


def _identify(paths: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    found = ((path, Path(path).stat()) for path in paths)
    return tuple((path, status.st_ino, status.st_size) for path, status in found)
