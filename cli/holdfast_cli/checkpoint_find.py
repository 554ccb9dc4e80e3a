"""The checkpoints below a directory, the ones that are no good included."""

import re
from dataclasses import dataclass
from pathlib import Path

from holdfast_cli.errors import CommandError
from holdfast_proto.checkpoint.errors import CheckpointUnreadable
from holdfast_proto.checkpoint.keeping import kept_reason
from holdfast_proto.checkpoint.manifest import MANIFEST, Manifest, load_committed_index, load_manifest

_STEP = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class FoundCheckpoint:
    """The directory of one step."""

    step: int
    directory: Path
    manifest: Manifest | None
    problem: str
    """Why there is no manifest; empty if there is one."""
    kept: str = ""
    """Why it stays until it is released; empty: it goes when its time has come."""


def find_checkpoints(path: Path) -> list[FoundCheckpoint]:
    """Return what the directory of a run's checkpoints holds, by ascending step. Raises CommandError."""
    try:
        matches = [(directory, _STEP.fullmatch(directory.name)) for directory in path.iterdir()]
    except OSError as error:
        raise CommandError(
            f"{path}: {error.strerror}: name the directory of a run's checkpoints with --checkpoints"
        ) from None
    found = [_look(int(match[1]), directory) for directory, match in matches if match]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def choose(path: Path, step: int | None) -> FoundCheckpoint:
    """Return the committed checkpoint of ``step``, or the newest. Raises CommandError if there is none."""
    found = find_checkpoints(path)
    if step is None:
        committed = [checkpoint for checkpoint in found if checkpoint.manifest is not None]
        if not committed:
            raise CommandError(f"{path} holds no checkpoint: take one with `holdfast checkpoint now`")
        return committed[-1]
    chosen = next((checkpoint for checkpoint in found if checkpoint.step == step), None)
    if chosen is None:
        raise CommandError(f"{path} holds no checkpoint of step {step}: `holdfast checkpoint list` shows what it holds")
    if chosen.manifest is None:
        raise CommandError(f"the checkpoint of step {step} cannot be used: {chosen.problem}: choose another step")
    return chosen


def layout_of(checkpoint: FoundCheckpoint) -> dict[str, int]:
    """Return the axes of the mesh that wrote it and their sizes, outermost first; none if the run named none.

    Raises CheckpointUnreadable.
    """
    assert checkpoint.manifest is not None
    # Coordinates are those of a full mesh: the last rank's are the highest along every axis.
    last = load_committed_index(checkpoint.directory, checkpoint.manifest, checkpoint.manifest.world_size - 1)
    return {axis: index + 1 for axis, index in last.coordinates.items()}


def _look(step: int, directory: Path) -> FoundCheckpoint:
    if not (directory / MANIFEST).exists():
        return FoundCheckpoint(step, directory, None, "it was never finished")
    try:
        manifest, kept = load_manifest(directory), kept_reason(directory)
    except CheckpointUnreadable as error:
        return FoundCheckpoint(step, directory, None, str(error))
    if manifest.step != step:
        return FoundCheckpoint(step, directory, None, f"{directory / MANIFEST} is the manifest of step {manifest.step}")
    return FoundCheckpoint(step, directory, manifest, "", kept or "")
