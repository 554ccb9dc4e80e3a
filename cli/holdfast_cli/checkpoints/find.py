"""Finds checkpoints for commands, and chooses one."""

from pathlib import Path

from holdfast_checkpoint.errors import CheckpointError
from holdfast_checkpoint.store.overview import CheckpointFiles, FoundCheckpoint, NoCheckpointFolderError, find_histories
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
