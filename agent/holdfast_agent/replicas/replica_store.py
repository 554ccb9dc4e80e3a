"""Keeps the replica snapshots of a node in shared memory: shards of its own ranks, and of ranks of other nodes.

They are next to the slots, in ``replicas/step-XXXXXXXX/rank-XXXXX.{shard,json}``. A shard counts once its index is
there. A shard that is a difference counts only while the full one that it builds on is there.
"""

import contextlib
import itertools
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from holdfast_agent.replicas.held_shards import HeldShard, HeldShards, Key
from holdfast_agent.replicas.replica_exchange import ReplicaError
from holdfast_agent.snapshots.memory_room import memory_room
from holdfast_agent.snapshots.rank_slots import is_private, make_private
from holdfast_base.processes import lower_priority
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnreadable, read_errors, write_errors
from holdfast_checkpoint.format.durable import NewFile, make_directory, remove_file, write_file
from holdfast_checkpoint.format.shard_file import ShardFile
from holdfast_checkpoint.format.shard_index import (
    INDEX_PATTERN,
    ShardIndex,
    index_path,
    load_index,
    load_index_file,
    shard_path,
    step_directory,
    step_of,
)
from holdfast_proto.v1 import store_pb2

_log = logging.getLogger(__name__)

_RESERVE_BYTES = 1 << 30
_RESERVE_PART = 10
"""Replica snapshots leave this memory, or one N-th of the file system if that is less, to the slots of ranks."""
_OLD = "old."
"""Begin of the names of what is to be removed."""


class ReplicaStore:
    """The replica snapshots of one run on this node. Safe to call from several threads.

    Methods that read whole files or indexes are too slow for an event loop: :meth:`adopt`, :meth:`add`, :meth:`opened`,
    :meth:`remove_all`, :meth:`find` and :meth:`note`. ``root`` is a folder in the node's folder of slots.
    """

    def __init__(self, root: Path, shm_directory: Path, run: str) -> None:
        self.run = run
        self._shm_directory = shm_directory
        self._root = root
        self._held = HeldShards()
        self._promised_bytes = 0
        self._numbers = itertools.count()
        self._remover = ThreadPoolExecutor(1, "replica-remover", initializer=lower_priority)
        self._lock = threading.RLock()
        """Is held while files appear or vanish, and not while they are received or read."""

    def directory(self, step: int) -> Path:
        """Return the folder of a step, in a folder that is private. Raises OSError."""
        make_private(self._root.parent)
        make_private(self._root)
        return step_directory(self._root, step)

    def adopt(self) -> None:
        """Take over what an earlier agent of this node has left, without files that are partial or unreadable."""
        with self._lock:
            self._held = HeldShards()
            if not (is_private(self._root.parent) and is_private(self._root)):
                return
            for path in self._root.glob(f"{_OLD}*"):
                _remove(path)
            # A base is of an earlier step than what builds on it.
            for step, folder in self._step_folders():
                kept = {path.name for index in self._sound(folder, step) for path in _files(folder, index.rank)}
                for path in folder.iterdir():
                    if path.name not in kept:
                        remove_file(path)
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()

    def _sound(self, folder: Path, step: int) -> Iterator[ShardIndex]:
        for path in folder.glob(INDEX_PATTERN):
            with contextlib.suppress(CheckpointError):
                index = load_index_file(path)
                with ShardFile(shard_path(folder, index.rank)) as file:
                    file.check_extent(index)
                is_here = (path, step, self.run) == (index_path(folder, index.rank), index.step, index.run)
                if is_here and self.has_base(index):
                    self._held.add(step, index.rank, HeldShard.of(index))
                    yield index

    def note(self, index: ShardIndex) -> bool:
        """Count a shard that was written here, and return whether it is complete. Without its base it is removed."""
        shard = HeldShard.of(index)
        with self._lock:
            if not index_path(step_directory(self._root, index.step), index.rank).exists():
                return False  # the run has gone back meanwhile
            self._forget_older(index.step, index.rank, shard)
            if not self.has_base(index):
                self._remove_files([(index.step, index.rank)])
                return False
            self._held.add(index.step, index.rank, shard)
            return True

    def held(self) -> list[store_pb2.HeldReplicas]:
        """Return which shards are complete, by step, generation and size of their world, ascending."""
        return self._held.by_step()

    @property
    def held_bytes(self) -> int:
        """Bytes of all shards."""
        return self._held.nbytes

    def find(self, rank: int, step: int, generation: int | None = None) -> ShardIndex | None:
        """Return the index of a shard; None without one. A damaged index is dropped with its shard."""
        shard = self._held.get(step, rank)
        if shard is None or generation not in (None, shard.generation):
            return None
        try:
            index = load_index(step_directory(self._root, step), rank)
            if index.digest != shard.digest:
                raise CheckpointUnreadable("its index has changed")
        except CheckpointError as error:
            self._drop_damaged(rank, step, shard.digest, error)
            return None
        return index

    def has(self, index: ShardIndex) -> bool:
        """Return whether this very shard is here."""
        shard = self._held.get(index.step, index.rank)
        return shard is not None and shard.digest == index.digest

    def has_base(self, index: ShardIndex) -> bool:
        """Return whether the shard that this one builds on is here, if there is one."""
        return self._held.has_base(index.base, index.rank)

    def base_for(self, rank: int, world_size: int, most_differences: int) -> int | None:
        """Return the step of the newest full shard of a rank; None if ``most_differences`` were built on it already."""
        return self._held.base_for(rank, world_size, most_differences)

    @contextlib.contextmanager
    def opened(self, index: ShardIndex) -> Iterator[BinaryIO]:
        """Open a shard that is here, after its digests are compared.

        Raises ReplicaError if it is damaged, and drops it.
        """
        path = shard_path(step_directory(self._root, index.step), index.rank)
        try:
            with read_errors(path), ShardFile(path) as shard:
                shard.check(index)
                file = path.open("rb", buffering=0)
        except CheckpointError as error:
            self._drop_damaged(index.rank, index.step, index.digest, error)
            what = f"the replica snapshot of rank {index.rank} and step {index.step}"
            raise ReplicaError(f"{what} is dropped: {error}") from error
        with file:
            yield file

    def add(self, index: ShardIndex, fill: Callable[[NewFile], None]) -> None:
        """Store a shard whose bytes ``fill`` writes, once they match their digests. Nobody sees it before.

        If the run goes back meanwhile, its folder vanishes and it cannot be stored. Raises ReplicaError, also if there
        is no room, if the bytes are damaged, or if a later generation has saved this step; and what ``fill`` raises.
        """
        what = f"the replica snapshot of rank {index.rank} and step {index.step}"
        try:
            with write_errors(self._root, what, "--shm-directory"), self._promised(index.shard_bytes):
                make_directory(self.directory(index.step))
                with NewFile(shard_path(self.directory(index.step), index.rank)) as new:
                    fill(new)
                    new.flush()
                    with ShardFile(new.path) as shard:
                        shard.check(index)
                    self._publish(new, index)
        except CheckpointUnreadable as error:
            raise ReplicaError(f"{what} has arrived damaged: {error}") from error
        except CheckpointError as error:
            raise ReplicaError(f"{what} is not stored: {error}") from error

    def _publish(self, new: NewFile, index: ShardIndex) -> None:
        shard, encoded = HeldShard.of(index), index.encode()
        with self._lock:
            older = self._held.get(index.step, index.rank)
            if older is not None and older.generation > index.generation:
                raise CheckpointError(f"it is here of generation {older.generation}, later than {index.generation}")
            if not self.has_base(index):
                raise CheckpointError("what it builds on is gone")
            self._forget_older(index.step, index.rank, shard)
            self._remove_files([(index.step, index.rank)])
            new.publish()
            write_file(index_path(new.target.parent, index.rank), encoded)
            self._held.add(index.step, index.rank, shard)

    def keep(self, kept_step: int | None, wanted_step: int) -> None:
        """Drop the shards of all steps but ``kept_step``, those from ``wanted_step`` on, and what these build on."""
        with self._lock:
            self._remove(self._held.unneeded(kept_step, wanted_step))
            used = self._held.steps() | {kept_step}
            self._remove_folders(lambda step: step < wanted_step and step not in used)

    def drop_after(self, step: int) -> None:
        """Drop the shards of all later steps, also those that are being written: the run has gone back to ``step``."""
        with self._lock:
            self._remove(self._held.later_than(step))
            self._remove_folders(lambda of_step: of_step > step)

    def drop(self, rank: int, step: int) -> None:
        """Drop a damaged shard, and those that build on it."""
        with self._lock:
            self._remove({(step, rank), *self._held.built_on(step, rank)})

    def room_bytes(self) -> int:
        """Return the bytes of memory that further shards may take. Raises OSError."""
        status = os.statvfs(self._shm_directory)
        reserve = min(_RESERVE_BYTES, status.f_blocks * status.f_frsize // _RESERVE_PART)
        return max(memory_room(self._shm_directory).free_bytes - reserve - self._promised_bytes, 0)

    def check_room(self, nbytes: int) -> None:
        """Raise ReplicaError if there is no room for ``nbytes``, or OSError."""
        room, free_bytes = memory_room(self._shm_directory), self.room_bytes()
        if nbytes > free_bytes:
            problem = f"no room for a replica snapshot of {nbytes} bytes: {room.limit} has {free_bytes} bytes for them"
            raise ReplicaError(f"{problem}: {room.fix}")

    def remove_all(self) -> None:
        """Remove all shards and their folder."""
        with self._lock:
            self._held = HeldShards()
            self._remover.submit(int).result()  # what it removes would be in the way
            if is_private(self._root.parent):  # else another user may have put a link to something in its place
                shutil.rmtree(self._root, ignore_errors=True)

    @contextlib.contextmanager
    def _promised(self, nbytes: int) -> Iterator[None]:
        """Set memory aside for a shard that is being received."""
        with self._lock:
            self.check_room(nbytes)
            self._promised_bytes += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._promised_bytes -= nbytes

    def _forget_older(self, step: int, rank: int, shard: HeldShard) -> None:
        """Drop what builds on an earlier shard of this rank and step, which another one is to replace."""
        if self._held.get(step, rank) != shard:
            self._remove(self._held.built_on(step, rank))
            self._held.remove([(step, rank)])

    def _drop_damaged(self, rank: int, step: int, digest: str, error: CheckpointError) -> None:
        with self._lock:
            shard = self._held.get(step, rank)
            if shard is not None and shard.digest == digest:  # else another one has replaced it
                _log.warning("the replica snapshot of rank %d and step %d is dropped: %s", rank, step, error)
                self.drop(rank, step)

    def _remove(self, keys: Collection[Key]) -> None:
        self._held.remove(keys)
        self._remove_files(keys)

    def _remove_files(self, keys: Collection[Key]) -> None:
        for step, rank in keys:
            for path in _files(step_directory(self._root, step), rank):
                self._discard(path)

    def _step_folders(self) -> list[tuple[int, Path]]:
        """Return the folders by their steps, ascending."""
        return sorted((step, path) for path in self._root.glob("*") if (step := step_of(path.name)) is not None)

    def _remove_folders(self, is_old: Callable[[int], bool]) -> None:
        """Remove folders with all that is in them. A write into one then fails, and leaves nothing behind."""
        for step, folder in self._step_folders():
            if is_old(step):
                self._discard(folder)

    def _discard(self, path: Path) -> None:
        """Move a file or a folder out of the way, and let a thread remove it: to free memory takes a while."""
        old = self._root / f"{_OLD}{os.getpid()}.{next(self._numbers)}"
        with contextlib.suppress(OSError):  # it is gone
            path.rename(old)
            self._remover.submit(_remove, old)


def _remove(path: Path) -> None:
    remove = shutil.rmtree if path.is_dir() else Path.unlink
    with contextlib.suppress(OSError):
        remove(path)


def _files(folder: Path, rank: int) -> tuple[Path, Path]:
    """Return the files of a shard, the index first: without it the other does not count."""
    return index_path(folder, rank), shard_path(folder, rank)
