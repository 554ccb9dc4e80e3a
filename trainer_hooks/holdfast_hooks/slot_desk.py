"""Asking the agent for snapshot memory, between the training thread and the reporter."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_hooks.once import OnceLog
from holdfast_hooks.slot_memory import make_ready
from holdfast_proto.snapshot import Slot, SnapshotError
from holdfast_proto.v1.session_pb2 import SlotGrant


@dataclass(frozen=True)
class Grant:
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
        self.grant: Grant | None = None
        self.refusal = ""
        """Why there will be no slots; written by the reporter."""
        self._requested_bytes = 0
        self._once = once

    def next_request(self) -> int | None:
        """Return the bytes per slot to ask for now, or None (reporter thread)."""
        held = self.grant.bytes_per_slot if self.grant else 0
        if self.refusal or self.needed_bytes <= max(held, self._requested_bytes):
            return None
        self._requested_bytes = self.needed_bytes
        return self._requested_bytes

    def forget_request(self) -> None:
        """The agent is a new one: what the old one was asked for counts no more (reporter thread)."""
        self._requested_bytes = 0

    def receive(self, grant: SlotGrant) -> None:
        """Take what the agent grants (reporter thread)."""
        if not grant.paths:
            self.refusal = grant.reason or "the agent has no memory for snapshots"
            self._once.warn("no snapshots", self.refusal)
            return
        try:
            files = _identify(grant.paths)
            if self.grant is None or self.grant.files != files:
                self.grant = Grant(tuple(Slot(Path(path)) for path in grant.paths), grant.on_disk, files)
                if not grant.on_disk:
                    make_ready(self.grant.slots, self._once)
            self.refusal = ""
        except (OSError, SnapshotError) as error:
            self._once.warn("granted snapshot slots cannot be opened", error)


def _identify(paths: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    found = ((path, Path(path).stat()) for path in paths)
    return tuple((path, status.st_ino, status.st_size) for path, status in found)
