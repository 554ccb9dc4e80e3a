"""All checkpoints of a folder, of all histories, including those that cannot be used."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.history import FIRST, HistoryRecord, folder_name
from holdfast_checkpoint.format.keeping import is_proven, kept_reason
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, load_committed_index, load_manifest
from holdfast_checkpoint.format.shard_index import step_of
from holdfast_checkpoint.format.verification import Verification, files_digest_in, read_verification
from holdfast_checkpoint.store.directory import missing_files
from holdfast_checkpoint.store.histories import FolderPlace, Histories
from holdfast_checkpoint.store.locations import is_url

_NAMED = 3
"""Number of files that a message names."""


class CheckpointFiles(Protocol):
    """The files of the checkpoints, where they are. Methods take the number of a history, and raise CheckpointError."""

    def missing(self, history: int, manifest: Manifest) -> Sequence[str]:
        """Return the files of a checkpoint that are missing or cut off."""

    def digest(self, history: int, manifest: Manifest) -> str | None:
        """Return a digest that changes when a file of a checkpoint does; None if one is missing."""


class LocalFiles:
    """The files of the checkpoints in a folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def missing(self, history: int, manifest: Manifest) -> Sequence[str]:
        """Look at the size of each."""
        return [str(file) for file in missing_files(self.path / folder_name(history), manifest)]

    def digest(self, history: int, manifest: Manifest) -> str | None:
        """Look at the size and the time of change of each."""
        return files_digest_in(self.path / folder_name(history), manifest)


@dataclass(frozen=True)
class FoundCheckpoint:
    """One checkpoint, usable or not."""

    step: int
    directory: Path
    manifest: Manifest | None
    problem: str
    """Reason for which it cannot be used; empty if it can, as far as that shows without reading all of it."""
    kept: str = ""
    """Reason for which it is pinned; empty: retention may delete it."""
    history: int = FIRST
    """Number of the history that it belongs to."""
    is_left: bool = False
    """Whether it belongs to a line of training that the run has left. A start does not choose it."""
    is_proven: bool = False
    """Whether a finite loss has followed."""
    is_suspect: bool = False
    """Whether its run has ended at a bad loss and it may hold the bad state."""
    verification: Verification | None = None
    """Result of the newest reading of all its bytes; None: none is known of these files as they are now."""

    @property
    def release_line(self) -> str:
        """What is said once it is no longer pinned."""
        return f"step {self.step} is released; it was kept for: {self.kept}"


class NoCheckpointFolderError(CheckpointError):
    """The folder is not there, or cannot be listed."""


@dataclass(frozen=True)
class FoundHistory:
    """A history and its checkpoints, by ascending step."""

    number: int
    record: HistoryRecord | None
    """Where it comes from; None of the first."""
    checkpoints: tuple[FoundCheckpoint, ...]


def find_histories(path: Path, files: CheckpointFiles | None = None) -> list[FoundHistory]:
    """Return what the directory of a run's checkpoints holds, the oldest history first.

    ``files``: those that are elsewhere. Raises CheckpointError, NoCheckpointFolderError without a folder.
    """
    histories = Histories(FolderPlace(path), lambda number: number)
    histories.refresh()
    found = []
    for number in [*histories.older(), histories.current]:
        stretch = next((stretch for part, stretch in histories.line() if part == number), None)
        bad_loss = histories.bad_loss(number)
        first_suspect = None if bad_loss is None else bad_loss.from_step
        checkpoints = []
        for step, directory in _step_directories(path / folder_name(number), is_needed=number == FIRST):
            is_left = stretch is None or not stretch.has(step) or histories.of_step(step) != number
            found_one = _look(step, directory, number, is_left, files or LocalFiles(path))
            checkpoints.append(_with_loss(found_one, first_suspect))
        found.append(FoundHistory(number, histories.records.get(number), tuple(checkpoints)))
    return found


def histories_at(location: str, *, at_url: str) -> tuple[list[FoundHistory], str]:
    """Return what the place of a run's checkpoints holds, and why it cannot be listed here; "" if it can.

    ``at_url``: the reason for a place in an object store.
    """
    if not location:
        return [], "the run has named no place of checkpoints"
    if is_url(location):
        return [], at_url
    if not Path(location).is_dir():
        return [], "this machine does not see the folder"
    try:
        return find_histories(Path(location)), ""
    except (CheckpointError, OSError) as error:
        return [], f"the folder cannot be listed here: {error}"


def needed_by(base: FoundCheckpoint, found: Iterable[FoundCheckpoint]) -> list[int]:
    """Return the steps of the checkpoints that cannot be read without ``base``."""
    return [
        one.step
        for one in found
        if one.manifest is not None and one.history == base.history and base.step in one.manifest.bases
    ]


def _step_directories(path: Path, *, is_needed: bool) -> list[tuple[int, Path]]:
    try:
        steps = [(step_of(directory.name), directory) for directory in path.iterdir()]
    except FileNotFoundError as error:
        if is_needed:
            raise NoCheckpointFolderError(_no_folder(path, error)) from None
        return []
    except OSError as error:
        raise NoCheckpointFolderError(_no_folder(path, error)) from None
    return sorted((step, directory) for step, directory in steps if step is not None)


def _no_folder(path: Path, error: OSError) -> str:
    return f"{path}: {error.strerror}: name the directory of a run's checkpoints with --checkpoints"


def layout_of(checkpoint: FoundCheckpoint) -> dict[str, int]:
    """Return the axes of the mesh that wrote it and their sizes, outermost first; none if the run named none.

    Raises CheckpointUnreadable.
    """
    assert checkpoint.manifest is not None
    # Coordinates are those of a full mesh: the last rank's are the highest along every axis.
    last = load_committed_index(checkpoint.directory, checkpoint.manifest, checkpoint.manifest.world_size - 1)
    return {axis: index + 1 for axis, index in last.coordinates.items()}


def _with_loss(found: FoundCheckpoint, first_suspect: int | None) -> FoundCheckpoint:
    """Return a checkpoint with what the loss of later steps says of it."""
    try:
        has_proof = is_proven(found.directory)
    except CheckpointUnavailable:  # nothing is proven by what cannot be read now
        has_proof = False
    is_suspect = first_suspect is not None and found.step >= first_suspect and not has_proof
    return replace(found, is_proven=has_proof, is_suspect=is_suspect)


def _look(step: int, directory: Path, history: int, is_left: bool, files: CheckpointFiles) -> FoundCheckpoint:
    def found(manifest: Manifest | None, problem: str, kept: str = "") -> FoundCheckpoint:
        return FoundCheckpoint(step, directory, manifest, problem, kept, history, is_left)

    def read_earlier(manifest: Manifest) -> Verification | None:
        return read_verification(directory, manifest, lambda: files.digest(history, manifest))

    if not (directory / MANIFEST).exists():
        return found(None, "it was never finished")
    try:
        manifest, kept = load_manifest(directory), kept_reason(directory)
        if manifest.step != step:
            return found(None, f"{directory / MANIFEST} is the manifest of step {manifest.step}")
        lacking, verification = files.missing(history, manifest), read_earlier(manifest)
    except CheckpointUnreadable as error:
        return found(None, str(error))
    except CheckpointError as error:
        return found(None, f"it cannot be read now: {error}")
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    problem = f"damaged: without {', '.join(lacking[:_NAMED])}{more}" if lacking else ""
    return replace(found(manifest, problem, kept or ""), verification=verification)
