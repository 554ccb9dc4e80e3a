"""Gives commands the checkpoints as a local folder. For a URL it is temporary, and holds what is needed."""

import fnmatch
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format import keeping
from holdfast_checkpoint.format.bad_loss import bad_loss_name
from holdfast_checkpoint.format.history import FIRST, MARKER, folder_name, record_name, recorded
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.format.shard_index import INDEX_PATTERN, step_directory
from holdfast_checkpoint.format.verification import (
    VERIFIED,
    Verification,
    checked_files,
    files_digest,
    manifest_digest,
    write_verification,
)
from holdfast_checkpoint.store.download import CheckpointDownload
from holdfast_checkpoint.store.locations import PRIMARY, is_url
from holdfast_checkpoint.store.object_checkpoints import (
    ObjectCheckpoints,
    manifest_name,
    mark_name,
    step_name,
    steps_of,
)
from holdfast_checkpoint.store.overview import (
    CheckpointFiles,
    FoundCheckpoint,
    LocalFiles,
    NoCheckpointFolderError,
    find_histories,
)
from holdfast_cli.checkpoints.location import open_remote
from holdfast_cli.errors import CheckpointsUnavailableError, CommandError


def find_checkpoints(path: Path, files: CheckpointFiles | None = None) -> list[FoundCheckpoint]:
    """Return what the directory of a run's checkpoints holds, history by history, by ascending step.

    ``files``: those that are elsewhere. Raises CommandError.
    """
    try:
        return [checkpoint for history in find_histories(path, files) for checkpoint in history.checkpoints]
    except NoCheckpointFolderError as error:
        raise CommandError(str(error)) from None
    except CheckpointError as error:
        raise CheckpointsUnavailableError(str(error)) from None


def choose(path: Path, step: int | None, files: CheckpointFiles | None = None) -> FoundCheckpoint:
    """Return the committed checkpoint of ``step``, or the newest one, of the present line of training.

    Raises CommandError if there is none.
    """
    found = [checkpoint for checkpoint in find_checkpoints(path, files) if not checkpoint.is_left]
    if step is None:
        committed = [checkpoint for checkpoint in found if checkpoint.manifest is not None]
        if not committed:
            raise CommandError(f"{path} holds no checkpoint: take one with `holdfast checkpoint now`")
        return max(committed, key=lambda checkpoint: checkpoint.step)
    chosen = next((checkpoint for checkpoint in found if checkpoint.step == step), None)
    if chosen is None:
        raise CommandError(f"{path} holds no checkpoint of step {step}: `holdfast checkpoint list` shows what it holds")
    if chosen.manifest is None:
        raise CommandError(f"the checkpoint of step {step} cannot be used: {chosen.problem}: choose another step")
    return chosen


class CheckpointFolder(CheckpointFiles, Protocol):
    """Checkpoints as a local folder. The manifest, the marks and one index of each are in it from the start.

    ``fetch`` and ``fetch_indexes`` raise CheckpointError: CheckpointUnavailable if something is missing,
    CheckpointUnreadable if it is damaged.
    """

    path: Path

    def find(self) -> list[FoundCheckpoint]:
        """Return all checkpoints. Raises CommandError."""

    def choose(self, step: int | None) -> FoundCheckpoint:
        """Return the checkpoint of a step, or the newest one. Raises CommandError."""

    def fetch(self, checkpoint: FoundCheckpoint) -> None:
        """Make all files of a checkpoint and of its base local."""

    def fetch_indexes(self, checkpoint: FoundCheckpoint) -> None:
        """Make the indexes of all ranks local."""

    def release(self, checkpoint: FoundCheckpoint) -> None:
        """Unpin a checkpoint: a later one deletes it when it is old enough. Raises CheckpointError."""

    def note(self, checkpoint: FoundCheckpoint, mark: Verification) -> None:
        """Write what a reading of all bytes has found next to the manifest. Raises CheckpointError."""

    def named(self, text: str) -> str:
        """Return a message that names the place as the user named it."""


class LocalFolder(LocalFiles):
    """A folder on this machine."""

    def find(self) -> list[FoundCheckpoint]:
        """Look into the folder."""
        return find_checkpoints(self.path)

    def choose(self, step: int | None) -> FoundCheckpoint:
        """Look into the folder."""
        return choose(self.path, step)

    def fetch(self, checkpoint: FoundCheckpoint) -> None:
        """Do nothing: the files are local."""

    def fetch_indexes(self, checkpoint: FoundCheckpoint) -> None:
        """Do nothing: the indexes are local."""

    def release(self, checkpoint: FoundCheckpoint) -> None:
        """Remove the mark."""
        keeping.release(checkpoint.directory)

    def note(self, checkpoint: FoundCheckpoint, mark: Verification) -> None:
        """Write the mark."""
        write_verification(checkpoint.directory, mark)

    def named(self, text: str) -> str:
        """Return it as it is."""
        return text


class DownloadedFolder:
    """What has been fetched of the checkpoints in a store into a temporary folder, laid out as they are there."""

    def __init__(self, remote: ObjectCheckpoints, path: Path) -> None:
        self.path = path
        self._remote = remote
        self._listed = remote.store.listing()
        names = self._listed.keys()
        for number in {FIRST, *recorded(names)}:
            folder = folder_name(number)
            for name in {record_name(number), bad_loss_name(number), f"{folder}/{MARKER}"} & names:
                (path / name).parent.mkdir(exist_ok=True)
                (path / name).write_bytes(remote.store.read(name))
            part = remote.of_history(number)
            inner = {name.removeprefix(f"{folder}/") for name in names if not folder or name.startswith(f"{folder}/")}
            for step in steps_of(inner):
                self._fetch_overview(part, path / folder, step, inner)

    def find(self) -> list[FoundCheckpoint]:
        """Look into the temporary folder, and into the listing of the store for missing files."""
        return find_checkpoints(self.path, self)

    def choose(self, step: int | None) -> FoundCheckpoint:
        """Choose from what :meth:`find` returns."""
        return choose(self.path, step, self)

    def fetch(self, checkpoint: FoundCheckpoint) -> None:
        """Download the shards."""
        self._download(checkpoint).fetch()

    def fetch_indexes(self, checkpoint: FoundCheckpoint) -> None:
        """Download the indexes."""
        self._download(checkpoint).fetch_indexes()

    def release(self, checkpoint: FoundCheckpoint) -> None:
        """Remove the mark in the store."""
        self._remote.of_history(checkpoint.history).store.remove([mark_name(checkpoint.step, keeping.KEPT)])

    def note(self, checkpoint: FoundCheckpoint, mark: Verification) -> None:
        """Put the mark, unless the checkpoint is another one by now."""
        part = self._remote.of_history(checkpoint.history)
        if manifest_digest(part.load_manifest(checkpoint.step)) != mark.manifest_digest:
            raise CheckpointError(f"{part.store.url} holds another checkpoint of this step now")
        part.store.write(mark_name(checkpoint.step, VERIFIED), mark.encode())

    def named(self, text: str) -> str:
        """Return a message with the URL in the place of the temporary folder."""
        return text.replace(str(self.path), self._remote.store.url)

    def missing(self, history: int, manifest: Manifest) -> list[str]:
        """Look into the listing of the store."""
        return self._remote.of_history(history).missing(manifest.step)

    def digest(self, history: int, manifest: Manifest) -> str | None:
        """Return a digest of the objects' versions, as they were listed before anything was downloaded."""
        folder = folder_name(history)
        objects = [self._listed.get(f"{folder}/{name}" if folder else name) for name in checked_files(manifest)]
        return None if None in objects else files_digest(one.version for one in objects if one is not None)

    def _download(self, checkpoint: FoundCheckpoint) -> CheckpointDownload:
        part = self._remote.of_history(checkpoint.history)
        return CheckpointDownload(part, checkpoint.step, self.path / folder_name(checkpoint.history))

    def _fetch_overview(self, part: ObjectCheckpoints, path: Path, step: int, names: Set[str]) -> None:
        """Download the manifest, the marks and the index of the last rank, which tells the layout."""
        step_directory(path, step).mkdir(parents=True)
        indexes = fnmatch.filter(names, f"{step_name(step)}/{INDEX_PATTERN}")
        marks = {mark_name(step, mark) for mark in (keeping.KEPT, keeping.PROVEN, VERIFIED)}
        for name in {manifest_name(step), *marks, *sorted(indexes)[-1:]} & names:
            (path / name).write_bytes(part.store.read(name))


@contextmanager
def open_folder(location: str) -> Iterator[CheckpointFolder]:
    """Yield the checkpoints at a path or URL. Raises CommandError, and lets its messages name the location."""
    if not is_url(location):
        yield LocalFolder(Path(location))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-checkpoints-") as temporary:
        try:
            folder = DownloadedFolder(open_remote(PRIMARY, location), Path(temporary))
        except CheckpointError as error:
            raise CommandError(str(error)) from None
        try:
            yield folder
        except CommandError as error:
            error.args = (folder.named(str(error)),)
            raise
