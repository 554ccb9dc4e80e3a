"""Brings a checkpoint from an object store to a local directory of checkpoints.

The local directory has the layout of any other, and a manifest in it means the same: all that a reader needs is there.
So the order is that of a write. Manifests of other contents are withdrawn first, then indexes and shards come, and the
manifests last. A download that was cut off leaves no manifest; the next one takes the files that are whole already.
"""

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import CheckpointUnavailable, CheckpointUnreadable, write_errors
from holdfast_checkpoint.format.durable import flush_directory, make_directory, remove_file, write_file
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, load_committed_index, load_manifest
from holdfast_checkpoint.format.shard_index import ShardIndex, index_path, shard_path, step_directory
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints, shard_name

_DOWNLOADS = 4
"""Shards that are fetched at the same time."""


class CheckpointDownload:
    """Downloads the checkpoint of ``step``, and its bases, into the local directory ``into``.

    A shard that is there with the right index and size is not fetched, unless ``again``: a reader compares its tensors
    with their digests anyway, and asks again if they differ. Several nodes may download into the same directory.
    Every method raises CheckpointError if the store or the directory cannot be used, CheckpointUnavailable if something
    is missing in the store, CheckpointUnreadable if it is damaged.
    """

    def __init__(self, source: ObjectCheckpoints, step: int, into: Path, *, again: bool = False) -> None:
        self.directory = step_directory(into, step)
        self._source = source
        self._into = into
        self._again = again
        self._manifest = source.load_manifest(step)
        self._manifests = {base: source.load_manifest(base) for base in self._manifest.bases}
        self._manifests[step] = self._manifest

    def fetch(self, ranks: Collection[int] | None = None) -> Path:
        """Download all that the states of ``ranks`` need (None: all shards), and return the directory of the step.

        That includes shards in which other ranks store a part for them, and the shards of bases.
        """
        self._withdraw_others()
        first = range(self._manifest.world_size) if ranks is None else sorted(ranks)
        indexes = self._fetch_ranks(first)
        entries = [tensor.entry for index in indexes for tensor in index.tensors if not tensor.is_stored]
        self._fetch_ranks(sorted({entry.writer for entry in entries if entry.writer is not None} - set(first)))
        self._write_manifests()
        return self.directory

    def fetch_indexes(self, ranks: Collection[int] | None = None) -> Path:
        """Download the manifests and the indexes of ``ranks`` (None: all), and return the directory of the step."""
        self._withdraw_others()
        for rank in range(self._manifest.world_size) if ranks is None else ranks:
            self._fetch_index(self._manifest, rank)
        self._write_manifests()
        return self.directory

    def _fetch_ranks(self, ranks: Iterable[int]) -> list[ShardIndex]:
        with ThreadPoolExecutor(_DOWNLOADS) as threads:
            return list(threads.map(lambda rank: self._fetch_rank(self._manifest, rank), ranks))

    def _fetch_rank(self, manifest: Manifest, rank: int) -> ShardIndex:
        index = self._fetch_index(manifest, rank)
        if index.base is not None:
            self._fetch_rank(self._manifests[index.base.step], rank)
        target = shard_path(step_directory(self._into, manifest.step), rank)
        if self._again or not target.exists() or target.stat().st_size != index.shard_bytes:
            self._source.store.download(shard_name(manifest.step, rank), index.shard_bytes, target)
        return index

    def _fetch_index(self, manifest: Manifest, rank: int) -> ShardIndex:
        """Return the committed index of ``rank``. A shard that is there with another index is removed."""
        directory = step_directory(self._into, manifest.step)
        try:
            return load_committed_index(directory, manifest, rank)
        except (CheckpointUnreadable, CheckpointUnavailable):
            index = self._source.load_index(manifest, rank)
        with write_errors(directory):
            make_directory(directory)
            remove_file(shard_path(directory, rank))
            write_file(index_path(directory, rank), index.encode())
        return index

    def _withdraw_others(self) -> None:
        """Remove local manifests of these steps with other contents, before the shards they vouch for are replaced."""
        for step, manifest in self._manifests.items():
            directory = step_directory(self._into, step)
            if (directory / MANIFEST).exists() and not _is_manifest_of(directory, manifest):
                with write_errors(directory):
                    remove_file(directory / MANIFEST)
                    flush_directory(directory)

    def _write_manifests(self) -> None:
        for step, manifest in sorted(self._manifests.items()):
            directory = step_directory(self._into, step)
            with write_errors(directory):
                _write_if_other(directory / MANIFEST, manifest.encode())


def _is_manifest_of(directory: Path, manifest: Manifest) -> bool:
    try:
        return load_manifest(directory) == manifest
    except (CheckpointUnreadable, CheckpointUnavailable):
        return False


def _write_if_other(path: Path, data: bytes) -> None:
    make_directory(path.parent)
    if not path.exists() or path.read_bytes() != data:
        write_file(path, data)
