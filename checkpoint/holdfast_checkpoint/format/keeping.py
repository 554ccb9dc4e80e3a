"""Keeping a checkpoint beyond its time: a small file beside its manifest, which pruning heeds until it is removed."""

import time
from pathlib import Path

from holdfast_checkpoint.errors import read_errors, write_errors
from holdfast_checkpoint.format.durable import flush_directory, remove_file, write_file
from holdfast_checkpoint.format.manifest import load_manifest
from holdfast_checkpoint.format.sealed_json import SealError, seal, unseal

KEPT = "kept.json"


def keep(directory: Path, reason: str) -> None:
    """Keep the committed checkpoint in ``directory``, for a reason that people read; the first one stays.

    Raises CheckpointUnreadable if there is none, CheckpointError if that cannot be written.
    """
    load_manifest(directory)
    if kept_reason(directory) is None:
        with write_errors(directory):
            write_file(directory / KEPT, seal({"reason": reason, "kept_unix_s": time.time()}))


def kept_reason(directory: Path) -> str | None:
    """Return why the checkpoint in ``directory`` is kept; None: it is not. Raises CheckpointUnreadable."""
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
    """Let the checkpoint in ``directory`` go when its time has come. Raises CheckpointError."""
    with write_errors(directory):
        remove_file(directory / KEPT)
        flush_directory(directory)
