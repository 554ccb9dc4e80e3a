"""Marks of a checkpoint: small files next to its manifest that keep it from removal.

A **pinned** checkpoint stays until an operator releases it. A **proven** one was followed by a finite loss: the newest
of them stays, so that a run whose loss is reported rarely has a state to go back to.
"""

import time
from pathlib import Path

from holdfast_checkpoint.checkpoint_errors import read_errors, write_errors
from holdfast_checkpoint.format.durable import flush_directory, remove_file, write_file
from holdfast_checkpoint.format.manifest import load_manifest
from holdfast_checkpoint.format.sealed_json import SealError, seal, unseal

KEPT = "kept.json"
"""Name of the file that pins. Its presence is what counts: a damaged one still pins the checkpoint."""
PROVEN = "proven.json"
"""Name of the file of a proven checkpoint. A damaged one proves nothing."""


def keep(directory: Path, reason: str) -> None:
    """Pin the committed checkpoint in ``directory``, for a reason that people read. An earlier reason stays.

    Raises CheckpointUnreadable or CheckpointUnavailable without a readable manifest, CheckpointError if the file cannot
    be written.
    """
    load_manifest(directory)
    if kept_reason(directory) is None:
        with write_errors(directory):
            write_file(directory / KEPT, seal({"reason": reason, "kept_unix_s": time.time()}))


def kept_reason(directory: Path) -> str | None:
    """Return why the checkpoint in ``directory`` is pinned, or None. Raises CheckpointUnavailable."""
    path = directory / KEPT
    if not path.exists():
        return None
    with read_errors(path):
        data = path.read_bytes()
    try:
        return str(unseal(data)["reason"])
    except (SealError, LookupError, TypeError):
        return f"{KEPT} is damaged: the reason is lost"  # the checkpoint itself may be sound


def release(directory: Path) -> None:
    """Unpin the checkpoint in ``directory``: it is removed when its time has come. Raises CheckpointError."""
    with write_errors(directory):
        remove_file(directory / KEPT)
        flush_directory(directory)


def prove(directory: Path, finite_step: int) -> None:
    """Mark the committed checkpoint in ``directory`` as proven by the finite loss of a later step.

    Raises CheckpointUnreadable or CheckpointUnavailable without a readable manifest, CheckpointError if the file cannot
    be written.
    """
    load_manifest(directory)
    if not is_proven(directory):
        with write_errors(directory):
            write_file(directory / PROVEN, proof(finite_step))


def is_proven(directory: Path) -> bool:
    """Return whether the checkpoint in ``directory`` has a sound file that proves it. Raises CheckpointUnavailable."""
    path = directory / PROVEN
    if not path.exists():
        return False
    with read_errors(path):
        data = path.read_bytes()
    try:
        return isinstance(unseal(data)["finite_step"], int)
    except (SealError, LookupError):
        return False


def proof(finite_step: int) -> bytes:
    """Return the contents of the file of a proven checkpoint. The same step gives the same bytes."""
    return seal({"finite_step": finite_step})
