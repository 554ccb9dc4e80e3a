"""The directory of a run's checkpoints: commits complete ones, finds them again, removes old ones.

::

    step-00000040/rank-00000.shard, rank-00000.json, ..., manifest.json

Agents of several nodes share the directory. Nothing in it is locked: every file appears by a rename, and
everybody who finds the same shards writes the same manifest.
"""

import contextlib
import logging
import re
from collections.abc import Collection
from pathlib import Path

from holdfast_agent.leftovers import remove_leftovers
from holdfast_agent.retention import base_step, previous_to, superfluous
from holdfast_proto.checkpoint.durable import NewFile, flush_directory, make_directory, remove_file, write_file
from holdfast_proto.checkpoint.errors import CheckpointUnreadable, read_errors, write_errors
from holdfast_proto.checkpoint.keeping import KEPT, keep
from holdfast_proto.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    describe,
    load_committed_index,
    load_manifest,
    manifest_shards,
)
from holdfast_proto.checkpoint.shard_index import ShardIndex, index_path, load_index, shard_path, step_directory
from holdfast_proto.checkpoint.shard_reader import verify_shard

_STEP = re.compile(r"step-(\d{8,})")
_logger = logging.getLogger(__name__)


class CheckpointDirectory:
    """The checkpoints of a run below ``path``, of which the newest ``kept`` are kept (at least one).

    Beyond that stay those that are marked (``holdfast_proto.checkpoint.keeping``) and what others build on.
    """

    store_retries = None
    """No object store is called."""

    def __init__(self, path: Path, kept: int) -> None:
        if kept < 1:
            raise ValueError(f"checkpoints kept: {kept}; keep at least 1")
        self.path = path
        self.kept = kept
        self.removal_failures_total = 0
        """Old checkpoints that could not be removed; tried again after the next commit."""

    def step_directory(self, step: int) -> Path:
        """Where the shards of ``step`` belong."""
        return step_directory(self.path, step)

    def check_writable(self) -> None:
        """Create the directory, write to it, and remove what dead writers of this host left in it.

        For the start of an agent. Raises CheckpointError.
        """
        with write_errors(self.path):
            make_directory(self.path)
            with NewFile(self.path / "writable") as probe:
                probe.write(b"\0")
                probe.flush()
            for directory in (self.path, *self._step_directories().values()):
                remove_leftovers(directory)

    def commit_if_complete(self, step: int, world_size: int, run: str) -> Manifest | None:
        """Commit ``step`` if the shards of all ranks are there, of one run, world size and generation.

        Returns the manifest (also if the step is committed already), or None as long as shards are missing.
        Any number of agents may call this at once. ``Manifest.stale`` tells of a save without news.
        Raises CheckpointError if the manifest cannot be written, CheckpointUnreadable for a damaged index.
        """
        directory = self.step_directory(step)
        indexes = _complete_set(directory, step, world_size, run)
        if indexes is None:
            return None
        manifests = self.manifests()
        committed = manifests.get(step)
        if committed and committed.run == run and committed.shards == manifest_shards(indexes):
            return committed
        manifest = describe(indexes, previous=previous_to(manifests, step))
        with write_errors(directory):
            write_file(directory / MANIFEST, manifest.encode())
        self._prune(manifest)
        return manifest

    def manifests(self) -> dict[int, Manifest]:
        """Return the manifests of all committed checkpoints, by step. Raises CheckpointUnreadable."""
        manifests = {}
        for step in self._step_directories():
            try:
                manifests[step] = self.load_manifest(step)
            except CheckpointUnreadable:
                continue  # not committed, as far as anybody can tell
        return manifests

    def committed(self) -> list[int]:
        """Return the steps of all committed checkpoints, ascending.

        Raises CheckpointUnreadable if the directory cannot be read: that is not the same as none.
        """
        return sorted(self.manifests())

    def load_manifest(self, step: int) -> Manifest:
        """Return the manifest of ``step``. Raises CheckpointUnreadable."""
        directory = self.step_directory(step)
        manifest = load_manifest(directory)
        if manifest.step != step:
            raise CheckpointUnreadable(f"{directory / MANIFEST} is the manifest of step {manifest.step}")
        return manifest

    def verify(self, step: int) -> Manifest:
        """Read all shards of ``step`` and return its manifest. Raises CheckpointUnreadable."""
        directory = self.step_directory(step)
        manifest = self.load_manifest(step)
        for rank in range(manifest.world_size):
            verify_shard(shard_path(directory, rank), load_committed_index(directory, manifest, rank))
        return manifest

    def close(self) -> None:
        """Nothing: no call takes long."""

    def base_for(self, step: int, *, run: str, world_size: int, generation: int, full_every: int) -> int | None:
        """Return the step of the full checkpoint to which ``step`` should be stored as a difference.

        None if it should be a full one itself: no other of this world and generation is before it, or
        ``full_every`` less one build on that already. Raises CheckpointUnreadable.
        """
        manifests = self.manifests()
        return base_step(manifests, step, run=run, world_size=world_size, generation=generation, full_every=full_every)

    def keep(self, step: int, reason: str) -> None:
        """Keep a committed checkpoint beyond its time. Raises CheckpointError."""
        keep(self.step_directory(step), reason)

    def mark(self, step: int) -> bytes | None:
        """Return the file that keeps ``step`` until it is released, or None. Raises CheckpointUnreadable."""
        path = self.step_directory(step) / KEPT
        if not path.exists():
            return None
        with read_errors(path):
            return path.read_bytes()

    def publish(self, step: int, rank: int) -> None:
        """Nothing: shards are written where they stay."""

    def fetch(self, step: int, ranks: Collection[int] | None = None, *, again: bool = False) -> Path:
        """Return where the shards of ``step`` can be read: all of them are there."""
        return self.step_directory(step)

    def _prune(self, newest: Manifest) -> None:
        """Remove what the commit of ``newest`` makes superfluous; what resists is tried again next time."""
        try:
            manifests = self.manifests()
            others = self._step_directories().keys() - manifests.keys()
            damaged = {step for step in others if (self.step_directory(step) / MANIFEST).exists()}
            old = superfluous(
                newest,
                manifests,
                kept=self.kept,
                marked={step for step in manifests if self.mark(step) is not None},
                unfinished=others - damaged,
                damaged=damaged,
            )
            for step in old.withdrawn:
                remove_file(self.step_directory(step) / MANIFEST)
                flush_directory(self.step_directory(step))
            for step in old.removed:
                remove_checkpoint(self.step_directory(step))
        except (OSError, CheckpointUnreadable) as error:
            self.removal_failures_total += 1
            _logger.warning("cannot remove old checkpoints: %s", error)

    def _step_directories(self) -> dict[int, Path]:
        if not self.path.exists():
            return {}
        with read_errors(self.path):
            matches = [(path, _STEP.fullmatch(path.name)) for path in self.path.iterdir()]
        return {int(match[1]): path for path, match in matches if match}


def _complete_set(directory: Path, step: int, world_size: int, run: str) -> list[ShardIndex] | None:
    if not all(index_path(directory, rank).exists() for rank in range(world_size)):
        return None
    try:
        indexes = [load_index(directory, rank) for rank in range(world_size)]
    except CheckpointUnreadable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None  # somebody is just saving this step again
        raise
    expected = (run, step, world_size, indexes[0].generation)
    for index in indexes:
        if (index.run, index.step, index.world_size, index.generation) != expected:
            return None
        if not _has_size(shard_path(directory, index.rank), index.shard_bytes) or not _has_base(directory, index):
            return None
    return indexes


def _has_base(directory: Path, index: ShardIndex) -> bool:
    """Whether what a shard builds on is still there: a write that took very long may have outlived it."""
    if index.base is None:
        return True
    base_directory = step_directory(directory.parent, index.base.step)
    try:
        base = load_index(base_directory, index.rank)
    except CheckpointUnreadable:
        return False
    return base.digest == index.base.index_digest and _has_size(shard_path(base_directory, base.rank), base.shard_bytes)


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def remove_checkpoint(directory: Path) -> None:
    """Remove a checkpoint, manifest first: one that is half removed must not look committed."""
    with contextlib.suppress(FileNotFoundError):  # another agent is faster
        remove_file(directory / MANIFEST)
        flush_directory(directory)
        for path in directory.iterdir():
            remove_file(path)
        directory.rmdir()
