"""A run's checkpoints in an object store, laid out as in a directory.

::

    <url>/step-00000040/rank-00000.shard, rank-00000.json, ..., manifest.json

An index is put after its shard is proved to be there, and the manifest after all indexes. Objects cannot be renamed,
so this order is what makes a crash harmless: a shard without an index, or indexes without a manifest, are no
checkpoint, and the next try puts what is missing. Agents of several nodes share the place without locks: all that find
the same indexes put the same manifest.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.history import FIRST, folder_name
from holdfast_checkpoint.format.keeping import KEPT, PROVEN
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, check_committed, check_generation, manifest_shards
from holdfast_checkpoint.format.shard_file import ShardFile
from holdfast_checkpoint.format.shard_index import (
    ShardIndex,
    index_path,
    load_index,
    shard_path,
    step_directory,
    step_of,
)
from holdfast_checkpoint.format.verification import VERIFIED
from holdfast_checkpoint.store.object_store import ObjectStore, StoredObject
from holdfast_checkpoint.store.retention import outlived, superfluous

Document = TypeVar("Document")


class ObjectCheckpoints:
    """The checkpoints of one history in ``store``.

    Every method raises CheckpointError if the store cannot be used, CheckpointUnavailable if an object is missing,
    CheckpointUnreadable if it is damaged.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._read: dict[int, tuple[StoredObject, Manifest]] = {}
        """Manifests by step, with their entry in the listing: an unchanged one is not fetched again."""

    def manifests(self) -> dict[int, Manifest]:
        """Return the manifests of all committed checkpoints, by step, without damaged ones."""
        return self._manifests(self.store.listing())

    def of_history(self, number: int) -> "ObjectCheckpoints":
        """Return the checkpoints of history ``number``; this object has those of the first history."""
        return self if number <= FIRST else ObjectCheckpoints(self.store.below(folder_name(number)))

    def damaged(self) -> set[int]:
        """Return the steps whose manifest is damaged."""
        listed = self.store.listing()
        return {step for step in steps_of(listed) - self._manifests(listed).keys() if manifest_name(step) in listed}

    def whole(self) -> int:
        """Return the number of committed checkpoints without missing files."""
        listed = self.store.listing()
        manifests = self._manifests(listed)
        return sum(not _missing(listed, manifests, manifest) for manifest in manifests.values())

    def missing(self, step: int) -> list[str]:
        """Return the names of a committed checkpoint's objects that are missing or have another size."""
        listed = self.store.listing()
        return _missing(listed, self._manifests(listed), self.load_manifest(step))

    def load_manifest(self, step: int) -> Manifest:
        """Return the manifest of ``step``."""
        name = manifest_name(step)
        manifest = self._decoded(Manifest.decode, self.store.read(name), name)
        if manifest.step != step:
            raise CheckpointUnreadable(f"{self.store.url}/{name} is the manifest of step {manifest.step}")
        return manifest

    def put_shard(self, source: Path, rank: int, *, check: bool = False) -> None:
        """Put the shard of ``rank`` from a checkpoint's directory, and then its index, unless the same are there.

        ``check``: read the shard first and compare it with its index. Raises CheckpointUnreadable if it is damaged,
        CheckpointCommitted if the step is committed with other contents, CheckpointError if a newer generation has
        saved it.
        """
        index = load_index(source, rank)
        step = index.step
        listed = self.store.listing(step_name(step))
        shard, name = shard_name(step, rank), index_name(step, rank)
        has_shard = _has_size(listed, shard, index.shard_bytes)
        if name in listed:
            if has_shard and self.store.read(name) == index.encode():
                return
            self._make_way(index)
        elif manifest_name(step) in listed:
            self._check_manifest(index)
        path = shard_path(source, rank)
        if check:
            with ShardFile(path) as file:
                file.check(index)
        if not (has_shard and self.store.is_copy(path, shard)):
            # An upload may be retried for so long that another node takes this one's place. So each try checks again.
            self.store.upload(path, shard, check=lambda: self._check_generation(index))
        self.store.write(name, index.encode())

    def complete_set(self, step: int, world_size: int, run: str) -> list[ShardIndex] | None:
        """Return the indexes of all ranks, or None unless all are there, of one generation, with their shards."""
        listed = self.store.listing(step_name(step))
        names = [index_name(step, rank) for rank in range(world_size)]
        if not listed.keys() >= set(names):
            return None
        try:
            contents = self.store.read_many(names)
        except CheckpointUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None  # another agent is saving this step again
            raise
        indexes = [self._decoded(ShardIndex.decode, data, name) for name, data in zip(names, contents, strict=True)]
        expected = (run, step, world_size, indexes[0].generation)
        for rank, index in enumerate(indexes):
            if (index.run, index.step, index.world_size, index.generation) != expected or index.rank != rank:
                return None
            if not _has_size(listed, shard_name(step, rank), index.shard_bytes):
                return None
        return indexes

    def commit(self, manifest: Manifest, indexes: Sequence[ShardIndex]) -> bool:
        """Put ``manifest`` if it vouches for ``indexes``, which are in the store, and their bases are committed.

        Returns whether the checkpoint is committed.
        """
        listed = self.store.listing()
        committed = self._manifests(listed)
        for index in indexes:
            if index.base is None:
                continue
            base = committed.get(index.base.step)
            if base is None or base.shards[index.rank].index_digest != index.base.index_digest:
                return False
        if manifest_shards(indexes) != manifest.shards:
            return False
        if mark_name(manifest.step, VERIFIED) in listed:
            self.store.remove([mark_name(manifest.step, VERIFIED)])  # of what was here before
        self.store.write(manifest_name(manifest.step), manifest.encode())
        # Another agent may have replaced a shard since. It removes the index and then looks for a manifest; here the
        # manifest is put and then the indexes are read again. So one of the two notices the other: see _make_way().
        now = self.complete_set(manifest.step, manifest.world_size, manifest.run)
        if now is None or manifest_shards(now) != manifest.shards:
            self.store.remove([manifest_name(manifest.step)])
            return False
        return True

    def prune(self, newest: Manifest, kept: int, marked: Collection[int] = ()) -> None:
        """Remove what the commit of ``newest`` makes superfluous, and unfinished uploads up to its step.

        The newest ``kept`` stay, pinned ones, the newest proven one, those in ``marked``, and the bases of all these.
        See :func:`superfluous`.
        """
        listed = self.store.listing()
        manifests = self._manifests(listed)
        others = steps_of(listed) - manifests.keys()
        old = superfluous(
            newest,
            manifests,
            kept=kept,
            marked={*marked, *_marked(KEPT, manifests, listed)},
            proven=_marked(PROVEN, manifests, listed),
            others=others,
            incomplete=_incomplete(listed, manifests),
        )
        self._remove(listed, old)

    def retire(self, marked: Collection[int] = (), *, spare_proven: bool) -> None:
        """Remove this history's checkpoints, because a newer history has enough.

        Pinned and ``marked`` ones stay, and with ``spare_proven`` the newest proven one.
        """
        listed = self.store.listing()
        manifests = self._manifests(listed)
        old = outlived(
            manifests,
            marked={*marked, *_marked(KEPT, manifests, listed)},
            proven=_marked(PROVEN, manifests, listed) if spare_proven else set(),
            others=steps_of(listed) - manifests.keys(),
            incomplete=_incomplete(listed, manifests),
        )
        self._remove(listed, old)

    def marked(self, mark: str, steps: Iterable[int]) -> set[int]:
        """Return those of ``steps`` that have a mark of this name."""
        return _marked(mark, steps, self.store.listing())

    def _remove(self, listed: Iterable[str], steps: Iterable[int]) -> None:
        # The manifest goes first: without it, the rest is no checkpoint if the removal stops in between.
        for step in steps:
            names = [name for name in listed if name.startswith(f"{step_name(step)}/")]
            self.store.remove(sorted(names, key=lambda name: not name.endswith(f"/{MANIFEST}")))

    def load_index(self, manifest: Manifest, rank: int) -> ShardIndex:
        """Return the index of ``rank`` that ``manifest`` vouches for."""
        name = index_name(manifest.step, rank)
        index = self._decoded(ShardIndex.decode, self.store.read(name), name)
        if index.digest != manifest.shards[rank].index_digest:
            raise CheckpointUnreadable(f"{self.store.url}/{name} is not the index that was committed")
        return index

    def _manifests(self, listed: Mapping[str, StoredObject]) -> dict[int, Manifest]:
        manifests = {}
        for step in steps_of(listed):
            found = listed.get(manifest_name(step))
            if found is None:
                continue
            known = self._read.get(step)
            if known is not None and known[0] == found:
                manifests[step] = known[1]
                continue
            try:
                manifests[step] = self.load_manifest(step)
            except CheckpointUnreadable:
                continue  # damaged
            except CheckpointUnavailable:
                continue  # removed since it was listed
            self._read[step] = (found, manifests[step])
        return manifests

    def _decoded(self, decode: Callable[[bytes], Document], data: bytes, name: str) -> Document:
        try:
            return decode(data)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointUnreadable(
                f"{self.store.url}/{name} is damaged, or not of this version: {error}"
            ) from error

    def _check_generation(self, index: ShardIndex) -> None:
        name = index_name(index.step, index.rank)
        with contextlib.suppress(CheckpointUnreadable, CheckpointUnavailable):  # there is none, or it is damaged
            check_generation(self._decoded(ShardIndex.decode, self.store.read(name), name), index)

    def _make_way(self, index: ShardIndex) -> None:
        """Remove the index of an unfinished save of this rank and step, before its shard is replaced.

        What is committed stays. ``slot_shard.py`` explains the order of the calls.
        """
        name = index_name(index.step, index.rank)
        self._check_manifest(index)
        self._check_generation(index)
        try:
            older = self.store.read(name)
        except CheckpointUnavailable:
            return
        if older == index.encode():
            return
        self.store.remove([name])
        try:
            self._check_manifest(index)
        except CheckpointError:
            self.store.write(name, older)
            raise

    def _check_manifest(self, index: ShardIndex) -> None:
        """Raise CheckpointCommitted if another state of this step is committed, CheckpointError if another run's is."""
        try:
            manifest = self.load_manifest(index.step)
        except CheckpointUnavailable:
            return
        except CheckpointUnreadable:
            self.store.remove([manifest_name(index.step)])  # it is damaged and vouches for nothing
            return
        if manifest.run != index.run:
            raise CheckpointError(
                f"{self.store.url}/{step_name(index.step)} is a checkpoint of run {manifest.run}: "
                f"set {self.store.setting} to a URL of its own for run {index.run}"
            )
        check_committed(manifest, index)


def steps_of(names: Iterable[str]) -> set[int]:
    """Return the steps to whose folders the objects of these names belong."""
    return {step for name in names if (step := step_of(name.partition("/")[0])) is not None}


def step_name(step: int) -> str:
    """Return the name of a step's folder."""
    return step_directory(Path(), step).name


def manifest_name(step: int) -> str:
    """Return the name of a step's manifest."""
    return f"{step_name(step)}/{MANIFEST}"


def mark_name(step: int, mark: str) -> str:
    """Return the name of the object that marks a step: see ``holdfast_checkpoint.format.keeping``."""
    return f"{step_name(step)}/{mark}"


def shard_name(step: int, rank: int) -> str:
    """Return the name of a shard."""
    return str(shard_path(step_directory(Path(), step), rank))


def index_name(step: int, rank: int) -> str:
    """Return the name of a shard's index."""
    return str(index_path(step_directory(Path(), step), rank))


def _has_size(listed: Mapping[str, StoredObject], name: str, nbytes: int) -> bool:
    return name in listed and listed[name].nbytes == nbytes


def _missing(listed: Mapping[str, StoredObject], manifests: Mapping[int, Manifest], manifest: Manifest) -> list[str]:
    missing = []
    for shard in manifest.shards:
        name = shard_name(manifest.step, shard.rank)
        missing += [] if _has_size(listed, name, shard.shard_bytes) else [name]
        name = index_name(manifest.step, shard.rank)
        missing += [] if name in listed else [name]
    for base in manifest.bases:
        found = manifests.get(base)
        missing += [manifest_name(base)] if found is None else _missing(listed, manifests, found)
    return missing


def _marked(mark: str, steps: Iterable[int], listed: Collection[str]) -> set[int]:
    return {step for step in steps if mark_name(step, mark) in listed}


def _incomplete(listed: Mapping[str, StoredObject], manifests: Mapping[int, Manifest]) -> set[int]:
    return {step for step, manifest in manifests.items() if _missing(listed, manifests, manifest)}
