"""The checkpoints of a run in an object store, with a local folder in which this node writes and reads shards."""

import logging
import os
import socket
from collections import deque
from collections.abc import Collection
from pathlib import Path

from holdfast_checkpoint.errors import CheckpointError, CheckpointUnavailable, read_errors, write_errors
from holdfast_checkpoint.format.durable import make_directory, remove_file, write_file
from holdfast_checkpoint.format.history import FIRST, HistoryRecord
from holdfast_checkpoint.format.keeping import KEPT, keep
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, describe, manifest_shards
from holdfast_checkpoint.format.shard_index import step_directory, step_of
from holdfast_checkpoint.store.directory import CheckpointDirectory, remove_checkpoint
from holdfast_checkpoint.store.download import CheckpointDownload
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints, kept_name
from holdfast_checkpoint.store.retention import base_step, previous_to
from holdfast_checkpoint.store.retries import Retries

_UNDER_WAY = 3
"""Steps whose shards may be being written at once: a rank has no more slots. After the run went back they may be older
than what is committed."""
_logger = logging.getLogger(__name__)


class StagedCheckpoints:
    """As :class:`CheckpointDirectory`, for checkpoints that exist when ``remote`` holds their manifest.

    ``staging`` is this node's alone. It keeps the node's shards of the checkpoints that the store keeps.
    """

    history = FIRST
    """One alone knows of no other."""
    runs: frozenset[str] = frozenset()

    def __init__(self, remote: ObjectCheckpoints, staging: Path, kept: int) -> None:
        self.remote = remote
        self.path = staging
        self.kept = kept
        self.removal_failures_total = 0
        """Old checkpoints that could not be removed; tried again after the next commit."""
        self._begun: deque[int] = deque(maxlen=_UNDER_WAY)

    @property
    def store_retries(self) -> Retries:
        """Tries and failures of the store's calls."""
        return self.remote.store.retries

    def step_directory(self, step: int) -> Path:
        """Where this node's shards of ``step`` belong until they are published."""
        return step_directory(self.path, step)

    def check_writable(self) -> None:
        """Write to the folder and to the store, for the start of an agent. Raises CheckpointError."""
        CheckpointDirectory(self.path, self.kept).check_writable()
        name = f"writable-{socket.gethostname()}-{os.getpid()}"
        self.remote.store.write(name, b"\0")
        self.remote.store.remove([name])

    def publish(self, step: int, rank: int) -> None:
        """Upload a shard that has been written to ``step_directory(step)``. Raises CheckpointError."""
        self.remote.put_shard(self.step_directory(step), rank)

    def commit_if_complete(self, step: int, world_size: int, run: str) -> Manifest | None:
        """Commit ``step`` if the shards of all ranks are published. As of :class:`CheckpointDirectory`."""
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

    def committed(self) -> list[int]:
        """Return the steps of all committed checkpoints, ascending. Raises CheckpointError."""
        return sorted(self.manifests())

    def damaged(self) -> list[int]:
        """Return the steps whose manifest does not read back, ascending. Raises CheckpointError."""
        return sorted(self.remote.damaged())

    def missing(self, step: int) -> list[str]:
        """Return the names of objects that a committed checkpoint needs and that are not there whole."""
        return self.remote.missing(step)

    def begin(self, record: HistoryRecord) -> None:
        """Refuse: this is one history. Raises CheckpointError."""
        raise CheckpointError(f"{self.remote.store.url} has no place for history {record.number}")

    def has_enough(self) -> bool:
        """Whether as many whole checkpoints are committed here as are to be kept. Raises CheckpointError."""
        return self.remote.whole() >= self.kept

    def retire(self) -> None:
        """Remove the checkpoints of a history that a newer one has outlived; what resists is tried again next time."""
        try:
            self.remote.retire()
            with write_errors(self.path):
                self._begun.clear()
                self._remove_copies(self.remote.manifests())
        except CheckpointError as error:
            self.removal_failures_total += 1
            _logger.warning("cannot remove old checkpoints: %s", error)

    def load_manifest(self, step: int) -> Manifest:
        """Return the manifest of ``step``. Raises CheckpointUnreadable, or CheckpointError without the store."""
        return self.remote.load_manifest(step)

    def fetch(self, step: int, ranks: Collection[int] | None = None, *, again: bool = False) -> Path:
        """Download what ``ranks`` need (None: all) and return the directory. See :class:`CheckpointDownload`."""
        return CheckpointDownload(self.remote, step, self.path, again=again).fetch(ranks)

    def base_for(self, step: int, *, run: str, world_size: int, generation: int, full_every: int) -> int | None:
        """Return to which full checkpoint ``step`` is to be stored as a difference. See :func:`base_step`."""
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
        """Keep a committed checkpoint beyond its time. Raises CheckpointError."""
        download = CheckpointDownload(self.remote, step, self.path)
        download.fetch_indexes(ranks=())
        with write_errors(download.directory):
            remove_file(download.directory / KEPT)  # it may have been released in the store
        keep(download.directory, reason)
        with read_errors(download.directory / KEPT):
            mark = (download.directory / KEPT).read_bytes()
        if self.mark(step) is None:
            self.remote.store.write(kept_name(step), mark)

    def mark(self, step: int) -> bytes | None:
        """Return the file that keeps ``step`` until it is released, or None. Raises CheckpointError."""
        try:
            return self.remote.store.read(kept_name(step))
        except CheckpointUnavailable:
            return None

    def close(self) -> None:
        """Try nothing again from now on."""
        self.remote.store.retries.closing.set()

    def _prune(self, newest: Manifest) -> None:
        """Remove what the commit of ``newest`` makes superfluous; what resists is tried again next time."""
        try:
            self.remote.prune(newest, self.kept)
        except CheckpointError as error:
            self.removal_failures_total += 1
            _logger.warning("cannot remove old checkpoints: %s", error)

    def _prune_staging(self, committed: Collection[int]) -> None:
        """Remove this node's copies of older steps that the store does not hold."""
        newest = max(committed, default=-1)
        self._remove_copies({*committed, *self._begun}, before=newest)

    def _remove_copies(self, staying: Collection[int], before: int | None = None) -> None:
        """Remove this node's copies of steps that are not ``staying``."""
        if not self.path.exists():
            return
        for directory in self.path.iterdir():
            step = step_of(directory.name)
            if step is not None and step not in staying and (before is None or step < before):
                remove_checkpoint(directory)
