"""The slots of a node's ranks: in memory that outlives the ranks, or on disk if memory is too small."""

import errno
import logging
import mmap
import os
import shutil
import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from holdfast_agent.snapshots.memory_room import NoRoom, memory_room, sized
from holdfast_agent.snapshots.rank_slots import (
    RankSlot,
    SlotAllocation,
    create_slots,
    find_slots,
    is_private,
    make_private,
    read_header,
    release_replica_pin,
)
from holdfast_proto.snapshot import DATA_OFFSET, Header, Slot, SlotState

log = logging.getLogger(__name__)

LEAST_SLOTS = 2
"""Least number of slots of a rank; on disk also the largest."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Errors that say nothing about a directory: another one would not help."""


class SnapshotMemory:
    """Creates, finds and removes the slots of one node's ranks. Safe to call from several threads.

    Slots are in ``<shm_directory>/holdfast-<uid>-<run>@<node>/``. If they do not fit there, all later ones are created
    in ``<disk_directory>/<node>/``.
    """

    def __init__(self, shm_directory: Path, disk_directory: Path, run: str, node: str) -> None:
        self.shm_directory = shm_directory
        self._memory = shm_directory / f"holdfast-{os.geteuid()}-{run}@{node}"
        self._disk = disk_directory / node
        self._files: dict[int, list[RankSlot]] = {}
        self._refusal: NoRoom | None = None
        self._lock = threading.RLock()

    @property
    def replica_directory(self) -> Path:
        """Directory in memory for replica snapshots."""
        return self._memory / "replicas"

    @property
    def on_disk(self) -> bool:
        """Whether memory was too small. Ranks then take snapshots for checkpoints only."""
        return self._refusal is not None

    def adopt(self) -> None:
        """Take over the slots that an earlier agent of this run and node has left.

        An agent that starts a run anew calls :meth:`remove_all` instead.
        """
        with self._lock:
            self._files = {}
            for file in self._existing():
                if read_header(file.path) is None:
                    file.path.unlink()  # its creator died before it was a slot
                else:
                    self._files.setdefault(file.rank, []).append(file)
                    release_replica_pin(file.path)  # that agent made the replica snapshot
            for files in self._files.values():
                files.sort(key=lambda file: file.number)
            if any(files[-1].path.parent == self._disk for files in self._files.values()):
                self._refusal = NoRoom(f"memory was too small for snapshots before: the slots are in {self._disk}")

    def grant(
        self, rank: int, bytes_per_slot: int, ranks_on_node: int, slots: int = LEAST_SLOTS, *, extra: int = 0
    ) -> SlotAllocation:
        """Return ``slots`` of at least ``bytes_per_slot`` for ``rank``: those it has, or new ones if they are small.

        A rank with too few slots gets more if there is room, and ``extra`` ones if all ranks of the node can have them.
        Old slots with a complete snapshot stay readable until :meth:`keep_only` drops them, or until a later call finds
        two complete snapshots in the new slots. A refusal is for now: the caller may ask again.
        """
        nbytes = -(-max(bytes_per_slot, DATA_OFFSET) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            with self._lock:
                granted = self._grant(rank, nbytes, ranks_on_node, slots)
                if extra and granted.paths:
                    self._add_slots(rank, slots + extra, self._missing_slots(ranks_on_node, slots + extra))
                    granted = replace(granted, paths=tuple(self.slots(rank)))
                return granted
        except OSError as error:
            reason = f"slots cannot be created now ({error}): raise the agent's limits (ulimit -n) or free memory"
            return SlotAllocation(paths=(), on_disk=self.on_disk, needed_bytes=0, free_bytes=0, reason=reason)

    def _grant(self, rank: int, nbytes: int, ranks_on_node: int, slots: int) -> SlotAllocation:
        if self.slots(rank) and self._current(rank)[0].nbytes >= nbytes:
            self._add_slots(rank, slots)
            self._drop_retired(rank)
            return self._answer(self.slots(rank))
        if self._refusal is None:
            self._refusal = self._allocate_in_memory(rank, nbytes, ranks_on_node, slots)
        if self._refusal is None:
            return self._answer(self.slots(rank))
        problem = self._allocate_on_disk(rank, nbytes)
        answer = self._answer([] if problem else self.slots(rank), problem)
        if not any(file.path.parent == self._disk for files in self._files.values() for file in files):
            self._refusal = None  # the disk has none either, so the next request may find room in memory again
        return answer

    def slots(self, rank: int) -> list[Path]:
        """Return the slots that ``rank`` writes to, by number; empty: it has none yet."""
        with self._lock:
            current = self._current(rank)
            # If there are fewer, the last agent died while it created them.
            return [file.path for file in current] if len(current) >= LEAST_SLOTS else []

    def header(self, path: Path) -> Header | None:
        """Return a slot's header as it is now, or None if there is no slot or it is just changing."""
        return read_header(path)

    def complete_steps(self, rank: int) -> list[int]:
        """Return the steps of which ``rank`` has a complete snapshot, ascending."""
        return sorted({header.step for _, header in self._complete(rank)})

    def slot_holding(self, rank: int, step: int) -> Path | None:
        """Return a slot with the complete snapshot of ``step``, a pinned one if there is one."""
        found = [(header.persist, path) for path, header in self._complete(rank) if header.step == step]
        return max(found)[1] if found else None

    def pin(self, rank: int, step: int) -> None:
        """Pin the slot of ``rank`` that holds the complete snapshot of ``step``, if there is one.

        A rank that continues at this moment may have begun to overwrite the slot, or may pin another step in it. The
        caller must check which step is pinned afterwards.
        """
        path = self.slot_holding(rank, step)
        if path is not None:
            with Slot(path) as slot:
                if not slot.header.persist:
                    slot.set_persist(True)

    def release(self, rank: int, step: int) -> None:
        """Release the slot of ``rank`` that is pinned for the checkpoint of ``step``."""
        for path, header in self._complete(rank):
            if header.step == step and header.persist:
                with Slot(path) as slot:
                    slot.set_persist(False)

    def pinned_for_replica(self, rank: int, step: int) -> Path | None:
        """Return the slot of ``rank`` that is pinned for the replica snapshot of ``step``, if there is one."""
        return next((path for path, header in self._complete(rank) if header.replica and header.step == step), None)

    def release_replica(self, rank: int, step: int) -> None:
        """Release the slot of ``rank`` that is pinned for the replica snapshot of ``step``."""
        path = self.pinned_for_replica(rank, step)
        if path is not None:
            release_replica_pin(path)

    def keep_only(self, step: int, ranks: Collection[int]) -> None:
        """Discard all snapshots except those of ``step``, and those of older steps that are pinned; -1 discards all.

        A pinned snapshot belongs to a checkpoint that is being written. It stays valid unless the run goes back to an
        earlier step. Slots are released from replica snapshots, which nobody makes any more. Call this before the next
        generation starts, while no rank is alive.

        ``ranks``: those of the node in that generation. The slots of other ranks are removed, except pinned ones: ranks
        are numbered anew when the nodes of the run change.

        A slot that was removed or damaged from outside is forgotten: its rank then gets a new one.
        """
        with self._lock:
            self._forget_damaged()
            for rank, files in list(self._files.items()):
                complete = dict(self._complete(rank))
                for file in files:
                    header = complete.get(file.path)
                    if header is None or not (header.step == step or (header.persist and header.step < step)):
                        with Slot(file.path) as slot:
                            slot.invalidate()
                    else:
                        release_replica_pin(file.path)
                if rank in ranks:
                    self._drop_retired(rank)
                else:
                    self._drop_unpinned(rank)

    def remove_all(self) -> None:
        """Remove all slots of this run and node, known or not, their directories, and all replica snapshots there.

        An agent of another start, which makes none, must not leave them for one that would take them for its own.
        """
        with self._lock:
            for file in self._existing():
                file.path.unlink(missing_ok=True)
            for directory in self._directories():
                if directory == self._memory:
                    shutil.rmtree(self.replica_directory, ignore_errors=True)
                if not any(directory.iterdir()):
                    directory.rmdir()
            self._files = {}

    def _answer(self, paths: list[Path], problem: str = "") -> SlotAllocation:
        refusal = self._refusal or NoRoom("")
        return SlotAllocation(
            paths=tuple(paths),
            on_disk=self.on_disk,
            needed_bytes=refusal.needed_bytes,
            free_bytes=refusal.free_bytes,
            reason="; ".join(filter(None, [refusal.reason, problem])),
        )

    def _allocate_in_memory(self, rank: int, nbytes: int, ranks_on_node: int, slots: int) -> NoRoom | None:
        """Create slots in memory if there is room for all ranks that still need some."""
        ranks_with_slots = len(self._files.keys() - {rank})
        needed = max(ranks_on_node - ranks_with_slots, 1) * slots * nbytes
        free = 0
        try:
            room = memory_room(self.shm_directory)
            free = room.free_bytes
            if needed > free:
                reason = f"snapshots need {sized(needed)} in {self.shm_directory}, but {room.limit} has only "
                return NoRoom(reason + f"{sized(free)} to spare: {room.fix}", needed, free)
            make_private(self._memory)
            self._allocate(rank, self._memory, nbytes, slots)
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise
            reason = f"snapshots cannot be kept in {self.shm_directory} ({error}): set --shm-directory to another one"
            return NoRoom(reason, needed, free)
        return None

    def _missing_slots(self, ranks_on_node: int, wanted: int) -> int:
        """Return how many slots the ranks of the node lack, if each is to have ``wanted``."""
        held = [len(self._current(rank)) for rank in self._files]
        unknown = max(ranks_on_node - len(held), 0)
        return sum(max(wanted - count, 0) for count in held) + unknown * wanted

    def _add_slots(self, rank: int, wanted: int, room_for: int = 0) -> None:
        """Create the slots that a rank lacks, if memory has room for them, and for ``room_for`` slots in all."""
        current = self._current(rank)
        missing, nbytes = wanted - len(current), current[0].nbytes
        if missing <= 0 or current[0].path.parent != self._memory:
            return
        try:
            if max(missing, room_for) * nbytes <= memory_room(self.shm_directory).free_bytes:
                self._allocate(rank, self._memory, nbytes, missing)
        except OSError as error:
            log.warning("rank %d keeps %d slots for snapshots: %s", rank, len(current), error)

    def _allocate_on_disk(self, rank: int, nbytes: int) -> str:
        """Create slots on disk; return why that is impossible, or ""."""
        needed = LEAST_SLOTS * nbytes
        try:
            self._disk.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.statvfs(self._disk)
            free = status.f_bavail * status.f_frsize
            if needed > free:
                return f"{self._disk} needs {sized(needed)} for them and has only {sized(free)}: free space there"
            self._allocate(rank, self._disk, nbytes, LEAST_SLOTS)
        except OSError as error:
            return f"{self._disk} cannot hold them either ({error})"
        return ""

    def _allocate(self, rank: int, directory: Path, nbytes: int, count: int) -> None:
        files = self._files.get(rank, [])
        first = files[-1].number + 1 if files else 0
        self._files[rank] = files + create_slots(directory, rank, range(first, first + count), nbytes)
        self._drop_retired(rank)

    def _current(self, rank: int) -> list[RankSlot]:
        """Return the newest set of slots: those in the directory and of the size of the last one created."""
        files = self._files.get(rank, [])
        return [f for f in files if (f.path.parent, f.nbytes) == (files[-1].path.parent, files[-1].nbytes)]

    def _drop_retired(self, rank: int) -> None:
        """Remove slots of earlier sets unless a snapshot in them may still be needed."""
        current = self._current(rank)
        complete = dict(self._complete(rank))
        is_in_use = sum(file.path in complete for file in current) >= 2
        for file in [file for file in self._files[rank] if file not in current]:
            header = complete.get(file.path)
            if header is None or (is_in_use and not header.is_pinned):
                file.path.unlink(missing_ok=True)
                self._files[rank].remove(file)

    def _drop_unpinned(self, rank: int) -> None:
        """Remove the slots of a rank, except those that a checkpoint is being written from."""
        pinned = {path for path, header in self._complete(rank) if header.persist}
        for file in self._files.pop(rank):
            if file.path in pinned:
                self._files.setdefault(rank, []).append(file)
            else:
                file.path.unlink(missing_ok=True)

    def _forget_damaged(self) -> None:
        for rank, files in list(self._files.items()):
            sound = [file for file in files if read_header(file.path) and file.path.stat().st_size == file.nbytes]
            for file in files:
                if file not in sound:
                    log.warning("%s is no slot any more: rank %d gets another one", file.path, rank)
                    file.path.unlink(missing_ok=True)
            self._files[rank] = sound
            if not sound:
                del self._files[rank]

    def _complete(self, rank: int) -> Iterator[tuple[Path, Header]]:
        with self._lock:
            files = list(self._files.get(rank, []))
        for file in files:
            header = read_header(file.path)
            if header is not None and header.state is SlotState.COMPLETE and header.rank == rank:
                yield file.path, header

    def _existing(self) -> list[RankSlot]:
        return [file for directory in self._directories() for file in find_slots(directory)]

    def _directories(self) -> list[Path]:
        """Return the directories that exist. In shared memory, where all users may write, it must be private."""
        return [
            path for path in (self._memory, self._disk) if path.is_dir() and (path == self._disk or is_private(path))
        ]
