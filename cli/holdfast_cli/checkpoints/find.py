"""Finds the checkpoints of all histories in a directory, including those that cannot be used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_checkpoint.errors import CheckpointError, CheckpointUnreadable
from holdfast_checkpoint.format.history import FIRST, folder_name
from holdfast_checkpoint.format.keeping import kept_reason
from holdfast_checkpoint.format.manifest import MANIFEST, Manifest, load_committed_index, load_manifest
from holdfast_checkpoint.format.shard_index import step_of
from holdfast_checkpoint.store.directory import missing_files
from holdfast_checkpoint.store.histories import FolderPlace, Histories
from holdfast_cli.errors import CheckpointsUnavailableError, CommandError

_NAMED = 3
"""Number of files that a message names."""

Missing = Callable[[int, Manifest], Sequence[str]]
"""Returns the files of a checkpoint that are missing or cut off. Takes the number of its history."""


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


def find_checkpoints(path: Path, missing: Missing | None = None) -> list[FoundCheckpoint]:
    """Return what the directory of a run's checkpoints holds, history by history, by ascending step.

    ``missing``: of files that are elsewhere. Raises CommandError.
    """
    histories = Histories(FolderPlace(path), lambda number: number)
    try:
        histories.refresh()
    except CheckpointError as error:
        raise CheckpointsUnavailableError(str(error)) from None
    found = []
    for number in [*histories.older(), histories.current]:
        for step, directory in _step_directories(path / folder_name(number), is_needed=number == FIRST):
            stretch = next((stretch for part, stretch in histories.line() if part == number), None)
            is_left = stretch is None or not stretch.has(step) or histories.of_step(step) != number
            found.append(_look(step, directory, number, is_left, missing or _missing_here(path)))
    return found


def choose(path: Path, step: int | None, missing: Missing | None = None) -> FoundCheckpoint:
    """Return the committed checkpoint of ``step``, or the newest one, of the present line of training.

    Raises CommandError if there is none.
    """
    found = [checkpoint for checkpoint in find_checkpoints(path, missing) if not checkpoint.is_left]
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


def _step_directories(path: Path, *, is_needed: bool) -> list[tuple[int, Path]]:
    try:
        steps = [(step_of(directory.name), directory) for directory in path.iterdir()]
    except FileNotFoundError as error:
        if is_needed:
            raise CommandError(_no_folder(path, error)) from None
        return []
    except OSError as error:
        raise CommandError(_no_folder(path, error)) from None
    return sorted((step, directory) for step, directory in steps if step is not None)


def _no_folder(path: Path, error: OSError) -> str:
    return f"{path}: {error.strerror}: name the directory of a run's checkpoints with --checkpoints"


def _missing_here(path: Path) -> Missing:
    return lambda history, manifest: [str(file) for file in missing_files(path / folder_name(history), manifest)]


def layout_of(checkpoint: FoundCheckpoint) -> dict[str, int]:
    """Return the axes of the mesh that wrote it and their sizes, outermost first; none if the run named none.

    Raises CheckpointUnreadable.
    """
    assert checkpoint.manifest is not None
    # Coordinates are those of a full mesh: the last rank's are the highest along every axis.
    last = load_committed_index(checkpoint.directory, checkpoint.manifest, checkpoint.manifest.world_size - 1)
    return {axis: index + 1 for axis, index in last.coordinates.items()}


def _look(step: int, directory: Path, history: int, is_left: bool, missing: Missing) -> FoundCheckpoint:
    def found(manifest: Manifest | None, problem: str, kept: str = "") -> FoundCheckpoint:
        return FoundCheckpoint(step, directory, manifest, problem, kept, history, is_left)

    if not (directory / MANIFEST).exists():
        return found(None, "it was never finished")
    try:
        manifest, kept = load_manifest(directory), kept_reason(directory)
        if manifest.step != step:
            return found(None, f"{directory / MANIFEST} is the manifest of step {manifest.step}")
        lacking = missing(history, manifest)
    except CheckpointUnreadable as error:
        return found(None, str(error))
    except CheckpointError as error:
        return found(None, f"it cannot be read now: {error}")
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    problem = f"damaged: without {', '.join(lacking[:_NAMED])}{more}" if lacking else ""
    return found(manifest, problem, kept or "")
