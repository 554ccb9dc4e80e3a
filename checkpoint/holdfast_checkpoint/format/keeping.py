"""Pins a checkpoint: a small file next to its manifest keeps it from removal until the file is removed."""

import time
from pathlib import Path

from holdfast_checkpoint.errors import read_errors, write_errors
from holdfast_checkpoint.format.durable import flush_directory, remove_file, write_file
from holdfast_checkpoint.format.manifest import load_manifest
from holdfast_checkpoint.format.sealed_json import SealError, seal, unseal

KEPT = "kept.json"
"""Name of the file. Its presence is what counts: a damaged one still pins the checkpoint."""


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
        return f"{KEPT} is damaged: nobody can tell why"  # the checkpoint itself may be sound


def release(directory: Path) -> None:
    """Unpin the checkpoint in ``directory``: it is removed when its time has come. Raises CheckpointError."""
    with write_errors(directory):
        remove_file(directory / KEPT)
        flush_directory(directory)
