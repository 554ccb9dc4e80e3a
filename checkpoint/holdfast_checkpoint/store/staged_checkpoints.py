"""The checkpoints of a history in an object store, with a local folder in which this node writes and reads shards."""

import logging
import os
import socket
from collections import deque
from collections.abc import Collection, Iterable
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, read_errors, write_errors
from holdfast_checkpoint.format.durable import make_directory, remove_file, write_file
from holdfast_checkpoint.format.keeping import KEPT, PROVEN, keep, proof
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, describe, manifest_shards
from holdfast_checkpoint.format.shard_index import step_directory, step_of
from holdfast_checkpoint.store.directory import CheckpointDirectory, remove_checkpoint
from holdfast_checkpoint.store.download import CheckpointDownload
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints, mark_name
from holdfast_checkpoint.store.retention import base_step, previous_to
from holdfast_checkpoint.store.retries import Retries

_UNDER_WAY = 3
"""Most steps whose shards can be in writing at the same time: a rank has no more slots. They stay in the staging folder
even if they are older than what is committed, which happens after a fallback."""
_logger = logging.getLogger(__name__)


class StagedCheckpoints:
    """Checkpoints that exist once ``remote`` has their manifest; else like :class:`CheckpointDirectory`.

    ``staging`` belongs to this node alone. It keeps the node's shards of all checkpoints in the store, so that a
    restart need not download them.
    """

    def __init__(self, remote: ObjectCheckpoints, staging: Path, kept: int) -> None:
        self.remote = remote
        self.path = staging
        self.kept = kept
        self.removal_failures_total = 0
        """Old checkpoints that could not be removed; tried again after the next commit."""
        self._begun: deque[int] = deque(maxlen=_UNDER_WAY)

    @property
    def store_retries(self) -> Retries:
        """Counters of the store's calls."""
        return self.remote.store.retries

    def step_directory(self, step: int) -> Path:
        """Return the folder of this node's shards of ``step``."""
        return step_directory(self.path, step)

    def check_writable(self) -> None:
        """Write to the folder and to the store, to test the settings at the agent's start. Raises CheckpointError."""
        CheckpointDirectory(self.path, self.kept).check_writable()
        name = f"writable-{socket.gethostname()}-{os.getpid()}"
        self.remote.store.write(name, b"\0")
        self.remote.store.remove([name])

    def publish(self, step: int, rank: int) -> None:
        """Upload a shard that has been written to ``step_directory(step)``. Raises CheckpointError."""
        self.remote.put_shard(self.step_directory(step), rank)

    def commit_if_complete(self, step: int, world_size: int, run: str) -> Manifest | None:
        """Commit ``step`` if the shards of all ranks are published. See :class:`CheckpointDirectory`."""
        indexes = self.remote.complete_set(step, world_size, run)
        if indexes is None:
            return None
        manifests = self.remote.manifests()
        committed = manifests.get(step)
        if committed is not None:
            is_same = committed.run == run and committed.shards == manifest_shards(indexes)
            return committed if is_same else None
        manifest = describe(indexes, previous=previous_to(manifests, step))
        if not self.remote.commit(manifest, indexes):
            return None
        self._prune(manifest)
        return manifest

    def manifests(self) -> dict[int, Manifest]:
        """Return the manifests of all committed checkpoints, by step. Raises CheckpointError."""
        return self.remote.manifests()

    def damaged(self) -> list[int]:
        """Return the steps whose manifest is damaged, ascending. Raises CheckpointError."""
        return sorted(self.remote.damaged())

    def missing(self, step: int) -> list[str]:
        """Return the names of a committed checkpoint's objects that are missing or have another size."""
        return self.remote.missing(step)

    def has_enough(self) -> bool:
        """Return whether at least ``kept`` whole checkpoints are committed here. Raises CheckpointError."""
        return self.remote.whole() >= self.kept

    def retire(self, *, spare_proven: bool) -> None:
        """Remove this history's checkpoints, because a newer history has enough of its own.

        Pinned and incomplete ones stay, and with ``spare_proven`` the newest proven one. The next commit retries a
        failed removal.
        """
        try:
            self.remote.retire(spare_proven=spare_proven)
            with write_errors(self.path):
                self._begun.clear()
                self._remove_copies(self.remote.manifests())
        except CheckpointError as error:
            self.removal_failures_total += 1
            _logger.warning("cannot remove old checkpoints: %s", error)

    def load_manifest(self, step: int) -> Manifest:
        """Return the manifest of ``step``. Raises CheckpointError."""
        return self.remote.load_manifest(step)

    def fetch(self, step: int, ranks: Collection[int] | None = None, *, again: bool = False) -> Path:
        """Download what ``ranks`` need (None: all) and return the local directory. See :class:`CheckpointDownload`."""
        return CheckpointDownload(self.remote, step, self.path, again=again).fetch(ranks)

    def base_for(self, step: int, *, run: str, world_size: int, generation: int, full_every: int) -> int | None:
        """Return the full checkpoint to which to store ``step`` as a difference, or None. See :func:`base_step`.

        It also prunes the staging folder, and puts the base's manifest there: a writer reads the base locally. Raises
        CheckpointError.
        """
        manifests = self.manifests()
        if step not in self._begun:
            self._begun.append(step)
        with write_errors(self.path):
            self._prune_staging(manifests.keys())
        base = base_step(manifests, step, run=run, world_size=world_size, generation=generation, full_every=full_every)
        if base is not None:
            directory = self.step_directory(base)
            with write_errors(directory):
                make_directory(directory)
                write_file(directory / MANIFEST, manifests[base].encode())
        return base

    def keep(self, step: int, reason: str) -> None:
        """Pin a committed checkpoint. Raises CheckpointError."""
        download = CheckpointDownload(self.remote, step, self.path)
        download.fetch_indexes(ranks=())
        with write_errors(download.directory):
            remove_file(download.directory / KEPT)  # it may have been released in the store
        keep(download.directory, reason)
        with read_errors(download.directory / KEPT):
            mark = (download.directory / KEPT).read_bytes()
        if self.mark(step) is None:
            self.remote.store.write(mark_name(step, KEPT), mark)

    def prove(self, step: int, finite_step: int) -> None:
        """Mark a committed checkpoint as proven by the finite loss of a later step. Raises CheckpointError."""
        self.remote.load_manifest(step)
        if self.mark(step, PROVEN) is None:
            self.remote.store.write(mark_name(step, PROVEN), proof(finite_step))

    def proven(self, steps: Iterable[int]) -> set[int]:
        """Return those of ``steps`` that a finite loss has followed. Raises CheckpointError."""
        return self.remote.marked(PROVEN, steps)

    def mark(self, step: int, name: str = KEPT) -> bytes | None:
        """Return the contents of an object that marks ``step``, or None. Raises CheckpointError."""
        try:
            return self.remote.store.read(mark_name(step, name))
        except CheckpointUnavailable:
            return None

    def close(self) -> None:
        """Retry nothing from now on, because the agent ends."""
        self.remote.store.retries.closing.set()

    def _prune(self, newest: Manifest) -> None:
        """Remove what the commit of ``newest`` makes superfluous. The next commit retries a failed removal."""
        try:
            self.remote.prune(newest, self.kept)
        except CheckpointError as error:
            self.removal_failures_total += 1
            _logger.warning("cannot remove old checkpoints: %s", error)

    def _prune_staging(self, committed: Collection[int]) -> None:
        """Remove this node's copies of older steps that the store does not have."""
        newest = max(committed, default=-1)
        self._remove_copies({*committed, *self._begun}, before=newest)

    def _remove_copies(self, staying: Collection[int], before: int | None = None) -> None:
        """Remove this node's copies of steps that are not ``staying``, or only those ``before`` a step."""
        if not self.path.exists():
            return
        for directory in self.path.iterdir():
            step = step_of(directory.name)
            if step is not None and step not in staying and (before is None or step < before):
                remove_checkpoint(directory)
