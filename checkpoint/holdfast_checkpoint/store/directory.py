"""The directory of a run's checkpoints: commits complete ones, finds them again, removes old ones.

::

    step-00000040/rank-00000.shard, rank-00000.json, ..., manifest.json

Agents of several nodes share the directory. Nothing in it is locked, so that a dead agent blocks no other. Every file
appears by a rename, and all agents that find the same shards write the same manifest. So several agents may do a
commit, or one of them again after a crash, with one result.
"""

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import (
    CheckpointError,
    CheckpointUnavailable,
    CheckpointUnreadable,
    read_errors,
    write_errors,
)
from holdfast_checkpoint.format.durable import NewFile, flush_directory, make_directory, remove_file, write_file
from holdfast_checkpoint.format.keeping import KEPT, is_proven, keep, prove
from holdfast_checkpoint.format.manifest import (
    MANIFEST,
    Manifest,
    describe,
    load_committed_index,
    load_manifest,
    manifest_shards,
)
from holdfast_checkpoint.format.shard_index import (
    ShardIndex,
    index_path,
    load_index,
    shard_path,
    step_directory,
    step_of,
)
from holdfast_checkpoint.format.shard_reader import verify_shard
from holdfast_checkpoint.format.verification import VERIFIED
from holdfast_checkpoint.store.leftovers import remove_leftovers
from holdfast_checkpoint.store.retention import base_step, outlived, previous_to, superfluous

_NAMED = 4
"""Most files that a message names."""
_logger = logging.getLogger(__name__)


class CheckpointDirectory:
    """The checkpoints of one history below ``path``. The newest ``kept`` stay (at least one).

    Others stay, too: pinned ones and the newest proven one (``holdfast_checkpoint.format.keeping``), bases of those
    that stay, and those with missing files, because the files may come back.
    """

    store_retries = None
    """Counters of an object store's calls; here there is none."""

    def __init__(self, path: Path, kept: int) -> None:
        if kept < 1:
            raise ValueError(f"checkpoints kept: {kept}; keep at least 1")
        self.path = path
        self.kept = kept
        self.removal_failures_total = 0
        """Old checkpoints that could not be removed; tried again after the next commit."""
        self._read: dict[int, tuple[tuple[int, ...], Manifest]] = {}
        """What the newest look has read, with the state of the file. All agents look every few seconds, and the
        manifest of ten thousand ranks has a megabyte."""

    def step_directory(self, step: int) -> Path:
        """Return the folder of ``step``'s shards."""
        return step_directory(self.path, step)

    def check_writable(self) -> None:
        """Create the directory, write to it, and remove what dead writers of this host left in it.

        An agent calls it at its start, so that a wrong setting shows before training does. Raises CheckpointError.
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

        Returns the manifest, also if the same shards are committed already; None as long as shards are missing. Any
        number of agents may call this at the same time. Raises CheckpointError if the manifest cannot be written,
        CheckpointUnreadable for a damaged index.
        """
        directory = self.step_directory(step)
        indexes = _complete_set(directory, step, world_size, run)
        if indexes is None:
            return None
        manifests = self.manifests()
        committed = manifests.get(step)
        if committed is not None:
            is_same = committed.run == run and committed.shards == manifest_shards(indexes)
            return committed if is_same else None
        manifest = describe(indexes, previous=previous_to(manifests, step))
        with write_errors(directory):
            remove_file(directory / VERIFIED)  # of what was here before
            write_file(directory / MANIFEST, manifest.encode())
            # An agent may have replaced a shard after its index was read here. It removes the index first and then
            # looks for a manifest (_make_way() in slot_shard.py); here the manifest comes first and then the indexes
            # are read again. So one of the two notices the other.
            if not _vouches(directory, manifest):
                remove_file(directory / MANIFEST)
                flush_directory(directory)
                return None
        self._prune(manifest)
        return manifest

    def manifests(self) -> dict[int, Manifest]:
        """Return the manifests of all committed checkpoints, by step, without damaged ones.

        Raises CheckpointUnavailable if the directory or a manifest cannot be read. That must not look like an empty
        directory, or a run would start from the seed.
        """
        return self._look()[0]

    def committed(self) -> list[int]:
        """Return the steps of all committed checkpoints, ascending. Raises CheckpointUnavailable."""
        return sorted(self.manifests())

    def damaged(self) -> list[int]:
        """Return the steps whose manifest is damaged, ascending. Raises CheckpointUnavailable."""
        return sorted(self._look()[1])

    def missing(self, step: int) -> list[str]:
        """Return the files of a committed checkpoint and its bases that are missing or have another size.

        It does not read their contents. Raises CheckpointUnreadable and CheckpointUnavailable for the manifest.
        """
        return [str(path) for path in missing_files(self.path, self.load_manifest(step))]

    def load_manifest(self, step: int) -> Manifest:
        """Return the manifest of ``step``. Raises CheckpointUnreadable and CheckpointUnavailable."""
        directory = self.step_directory(step)
        manifest = load_manifest(directory)
        if manifest.step != step:
            raise CheckpointUnreadable(f"{directory / MANIFEST} is the manifest of step {manifest.step}")
        return manifest

    def verify(self, step: int) -> Manifest:
        """Read all shards of ``step`` and return its manifest. Raises CheckpointUnreadable, CheckpointUnavailable."""
        directory = self.step_directory(step)
        manifest = self.load_manifest(step)
        for rank in range(manifest.world_size):
            verify_shard(shard_path(directory, rank), load_committed_index(directory, manifest, rank))
        return manifest

    def close(self) -> None:
        """Do nothing: no call of a folder is retried."""

    def base_for(self, step: int, *, run: str, world_size: int, generation: int, full_every: int) -> int | None:
        """Return the step of the full checkpoint to which ``step`` should be stored as a difference, or None.

        See :func:`base_step`. Raises CheckpointUnavailable.
        """
        manifests = self.manifests()
        return base_step(manifests, step, run=run, world_size=world_size, generation=generation, full_every=full_every)

    def keep(self, step: int, reason: str) -> None:
        """Pin a committed checkpoint. Raises CheckpointError."""
        keep(self.step_directory(step), reason)

    def prove(self, step: int, finite_step: int) -> None:
        """Mark a committed checkpoint as proven by the finite loss of a later step. Raises CheckpointError."""
        prove(self.step_directory(step), finite_step)

    def mark(self, step: int, name: str = KEPT) -> bytes | None:
        """Return the contents of a file that marks ``step``, or None. Raises CheckpointUnavailable."""
        path = self.step_directory(step) / name
        if not path.exists():
            return None
        with read_errors(path):
            return path.read_bytes()

    def publish(self, step: int, rank: int) -> None:
        """Do nothing: shards are written where they stay."""

    def fetch(  # the interface of all places
        self,
        step: int,
        ranks: Collection[int] | None = None,  # noqa: ARG002
        *,
        again: bool = False,  # noqa: ARG002
    ) -> Path:
        """Return the folder in which the shards of ``step`` can be read.

        Raises CheckpointUnavailable, naming the missing files, and CheckpointUnreadable for the manifest.
        """
        absent = [path for path in missing_files(self.path, self.load_manifest(step)) if not path.exists()]
        if absent:
            raise CheckpointUnavailable(f"the checkpoint of step {step} lacks {_listed(absent)}")
        return self.step_directory(step)

    def _prune(self, newest: Manifest) -> None:
        """Remove what the commit of ``newest`` makes superfluous. The next commit retries a failed removal."""
        with self._removal():
            manifests, damaged, unfinished = self._look()
            incomplete = {step for step in manifests if self.missing(step)}  # takes long: the marks are read after it
            old = superfluous(
                newest,
                manifests,
                kept=self.kept,
                marked=self._marked(manifests),
                proven=self.proven(manifests),
                others=damaged | unfinished,
                incomplete=incomplete,
            )
            for step in old:
                remove_checkpoint(self.step_directory(step))

    def has_enough(self) -> bool:
        """Return whether at least ``kept`` whole checkpoints are committed here. Raises CheckpointUnavailable."""
        return sum(not self.missing(step) for step in self.manifests()) >= self.kept

    def retire(self, *, spare_proven: bool) -> None:
        """Remove this history's checkpoints, because a newer history has enough of its own.

        Pinned and incomplete ones stay, and with ``spare_proven`` the newest proven one. The next commit retries a
        failed removal.
        """
        with self._removal():
            manifests, damaged, unfinished = self._look()
            incomplete = {step for step in manifests if self.missing(step)}
            marked, others = self._marked(manifests), damaged | unfinished
            proven = self.proven(manifests) if spare_proven else set()
            for step in outlived(manifests, marked=marked, proven=proven, others=others, incomplete=incomplete):
                remove_checkpoint(self.step_directory(step))

    @contextlib.contextmanager
    def _removal(self) -> Iterator[None]:
        try:
            yield
        except (OSError, CheckpointError) as error:
            self.removal_failures_total += 1
            _logger.warning("cannot remove old checkpoints: %s", error)

    def proven(self, steps: Iterable[int]) -> set[int]:
        """Return those of ``steps`` that a finite loss has followed. Raises CheckpointUnavailable."""
        return {step for step in steps if is_proven(self.step_directory(step))}

    def _marked(self, steps: Iterable[int]) -> set[int]:
        return {step for step in steps if self.mark(step) is not None}

    def _look(self) -> tuple[dict[int, Manifest], set[int], set[int]]:
        """Return the manifests by step, the steps of damaged ones, and those without one."""
        read, damaged, unfinished = {}, set(), set()
        for step, directory in self._step_directories().items():
            try:
                read[step] = self._read_if_new(step)
            except CheckpointUnreadable:
                damaged.add(step)
            except CheckpointUnavailable as error:
                if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                    raise
                if directory.is_dir():  # else it has been removed just now
                    unfinished.add(step)
        self._read = read
        return {step: manifest for step, (_, manifest) in read.items()}, damaged, unfinished

    def _read_if_new(self, step: int) -> tuple[tuple[int, ...], Manifest]:
        path = self.step_directory(step) / MANIFEST
        with read_errors(path):
            status = path.stat()
        state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._read.get(step)
        return known if known is not None and known[0] == state else (state, self.load_manifest(step))

    def _step_directories(self) -> dict[int, Path]:
        with read_errors(self.path):
            try:
                folders = [(step_of(path.name), path) for path in self.path.iterdir()]
            except FileNotFoundError:
                return {}
        return {step: path for step, path in folders if step is not None}


def _complete_set(directory: Path, step: int, world_size: int, run: str) -> list[ShardIndex] | None:
    if not all(index_path(directory, rank).exists() for rank in range(world_size)):
        return None
    try:
        indexes = [load_index(directory, rank) for rank in range(world_size)]
    except CheckpointUnavailable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None  # another agent is saving this step again
        raise
    expected = (run, step, world_size, indexes[0].generation)
    for index in indexes:
        if (index.run, index.step, index.world_size, index.generation) != expected:
            return None
        if not _has_size(shard_path(directory, index.rank), index.shard_bytes) or not _has_base(directory, index):
            return None
    return indexes


def _has_base(directory: Path, index: ShardIndex) -> bool:
    """Return whether a shard's base is still there: it may have been removed during a write that took very long."""
    if index.base is None:
        return True
    base_directory = step_directory(directory.parent, index.base.step)
    try:
        base = load_index(base_directory, index.rank)
    except (CheckpointUnreadable, CheckpointUnavailable):
        return False
    return base.digest == index.base.index_digest and _has_size(shard_path(base_directory, base.rank), base.shard_bytes)


def _listed(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(map(str, paths[:_NAMED])) + more


def _vouches(directory: Path, manifest: Manifest) -> bool:
    """Return whether the indexes that are there now are those of the manifest."""
    try:
        for rank in range(manifest.world_size):
            load_committed_index(directory, manifest, rank)
    except (CheckpointUnreadable, CheckpointUnavailable):
        return False
    return True


def missing_files(path: Path, manifest: Manifest) -> list[Path]:
    """Return the files of ``manifest`` and its bases below ``path`` that are missing or have another size.

    Raises CheckpointUnavailable if a file's state cannot be read.
    """
    missing = []
    directory = step_directory(path, manifest.step)
    for shard in manifest.shards:
        file, index = shard_path(directory, shard.rank), index_path(directory, shard.rank)
        with read_errors(file):
            missing += [] if index.exists() else [index]
            missing += [] if _has_size(file, shard.shard_bytes) else [file]
    for base in manifest.bases:
        base_directory = step_directory(path, base)
        try:
            missing += missing_files(path, load_manifest(base_directory))
        except (CheckpointUnreadable, CheckpointUnavailable):
            missing.append(base_directory / MANIFEST)
    return missing


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def remove_checkpoint(directory: Path) -> None:
    """Remove a checkpoint, manifest first: a half removed one must not look committed.

    The removal of the manifest is flushed before anything else goes. Otherwise a power cut could bring back the
    manifest without its shards. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):  # another agent is faster
        remove_file(directory / MANIFEST)
        flush_directory(directory)
        for path in directory.iterdir():
            remove_file(path)
        directory.rmdir()
