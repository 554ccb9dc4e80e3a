"""Creates, finds and reads the slot files of ranks, and the directories that hold them."""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from holdfast_proto.snapshot import Header, Slot, SlotState, SnapshotError, allocate

_NAME = re.compile(r"rank-(?P<rank>\d{5,})\.(?P<number>\d+)\.slot")


@dataclass(frozen=True)
class RankSlot:
    """One slot of a rank. A rank's slots are numbered in the order in which they are created."""

    path: Path
    rank: int
    number: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class SlotAllocation:
    """A rank's slots, or why it has none."""

    paths: tuple[Path, ...]
    """Paths of the slots; empty: refused."""
    on_disk: bool
    needed_bytes: int
    """Bytes of memory for all ranks of the node without slots, if memory was too small; else 0."""
    free_bytes: int
    reason: str
    """Why the slots are on disk, or refused."""


def create_slots(directory: Path, rank: int, numbers: range, nbytes: int) -> list[RankSlot]:
    """Create empty slots. If not all of them fit, leave none behind and raise OSError (ENOSPC)."""
    created: list[RankSlot] = []
    try:
        for number in numbers:
            path = directory / f"rank-{rank:05}.{number}.slot"
            path.unlink(missing_ok=True)  # left by an earlier run of this name
            allocate(path, nbytes)
            created.append(RankSlot(path, rank, number, nbytes))
    except OSError:
        for file in created:
            file.path.unlink()
        raise
    return created


def find_slots(directory: Path) -> list[RankSlot]:
    """Return the files in ``directory`` named like slots, by rank and number."""
    matches = [(path, _NAME.fullmatch(path.name)) for path in directory.iterdir()]
    files = [RankSlot(path, int(m["rank"]), int(m["number"]), path.stat().st_size) for path, m in matches if m]
    return sorted(files, key=lambda file: (file.rank, file.number))


def read_header(path: Path) -> Header | None:
    """Return a slot's header as it is now; None without a sound slot, or if a rank is changing the header."""
    try:
        with Slot(path) as slot:
            first, second = slot.header, slot.header
    except (FileNotFoundError, SnapshotError, ValueError):
        return None
    # While a rank begins a snapshot, a single read could return the old state with the new step.
    return first if first == second else None


def must_be_written(header: Header | None) -> bool:
    """Return whether a slot, given its header (None: it cannot be read), holds a snapshot for a checkpoint."""
    return header is not None and header.persist and header.state is SlotState.COMPLETE


def release_replica_pin(path: Path) -> None:
    """Release a slot from a replica snapshot, if it is pinned for one."""
    with Slot(path) as slot:
        if slot.header.replica:
            slot.release_replica()


def make_private(directory: Path) -> None:
    """Create ``directory`` for this user alone. Raises PermissionError if another user has made something there."""
    directory.mkdir(mode=0o700, exist_ok=True)
    if not is_private(directory):
        raise PermissionError(f"{directory} is not a directory of this user alone")


def is_private(directory: Path) -> bool:
    """Return whether it is a directory, and no link to one, in which no other user can create or read files."""
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
