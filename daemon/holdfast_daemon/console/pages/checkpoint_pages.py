"""The checkpoints of a run: those of a folder on this machine, else the steps that the nodes report."""

from pathlib import Path
from typing import Any

from holdfast_checkpoint.errors import CheckpointError
from holdfast_checkpoint.format import keeping
from holdfast_checkpoint.store.locations import is_url
from holdfast_checkpoint.store.overview import FoundCheckpoint, FoundHistory, find_histories
from holdfast_daemon.console.serving.guard import RefusedRequestError
from holdfast_daemon.core.model import CoreState

_REPORTED = "the steps are those that nodes report"


def checkpoint_list(state: CoreState) -> dict[str, Any]:
    """Return the histories and their checkpoints. It reads files: call it outside of event loops."""
    location = state.spec.checkpoint_directory
    note = _why_not_here(location)
    histories: list[dict[str, Any]] = []
    if not note:
        try:
            histories = [_history(found) for found in find_histories(Path(location))]
        except (CheckpointError, OSError) as error:
            note = f"the folder cannot be listed here: {error}"
    if note and state.record.phase:
        histories = _reported(state)
    return {"histories": histories, "location": location, "note": note}


def release_checkpoint(state: CoreState, step: int) -> str:
    """Unpin a checkpoint of the present line of training; return what was done. Raises RefusedRequestError."""
    location = state.spec.checkpoint_directory
    if reason := _why_not_here(location):
        raise RefusedRequestError(409, f"{reason}: use `holdfast checkpoint release {step}` where they can be reached")
    try:
        found = [one for history in find_histories(Path(location)) for one in history.checkpoints]
        chosen = next((one for one in found if one.step == step and not one.is_left), None)
        if chosen is None:
            raise RefusedRequestError(404, f"there is no checkpoint of step {step}")
        if not chosen.kept:
            raise RefusedRequestError(409, f"the checkpoint of step {step} is not kept")
        keeping.release(chosen.directory)
    except (CheckpointError, OSError) as error:
        raise RefusedRequestError(409, str(error)) from None
    return f"step {step} is released; it was kept for: {chosen.kept}"


def _why_not_here(location: str) -> str:
    """Return why this machine cannot list a location; "" if it can."""
    if not location:
        return "the run has named no place of checkpoints"
    if is_url(location):
        return f"the checkpoints are in an object store, which the console does not read: {_REPORTED}"
    if not Path(location).is_dir():
        return f"this machine does not see the folder: {_REPORTED}"
    return ""


def _history(found: FoundHistory) -> dict[str, Any]:
    record = found.record
    return {
        "number": found.number,
        "parent": record.parent if record is not None else None,
        "parent_step": record.parent_step if record is not None else None,
        "checkpoints": [_checkpoint(one) for one in found.checkpoints],
    }


def _checkpoint(found: FoundCheckpoint) -> dict[str, Any]:
    manifest = found.manifest
    fields: dict[str, Any] = {
        "step": found.step,
        "form": "difference" if manifest is not None and manifest.bases else "full",
        "base_step": manifest.bases[-1] if manifest is not None and manifest.bases else None,
        "bytes": manifest.stored_bytes if manifest is not None else None,
        "raw_bytes": manifest.raw_bytes if manifest is not None else None,
        "committed_unix_s": manifest.committed_unix_s if manifest is not None else None,
        "kept": bool(found.kept),
        "kept_for": found.kept,
        "proven": found.is_proven,
        "suspect": found.is_suspect,
        # That all files are there is no proof that every byte is right: only `holdfast checkpoint verify` reads them.
        "verified": False if found.problem else None,
        "problem": found.problem,
        "left": found.is_left,
    }
    return fields


def _reported(state: CoreState) -> list[dict[str, Any]]:
    """Return the steps that nodes see, by history: nothing else is known of them."""
    steps: dict[int, set[int]] = {}
    for node in state.nodes.values():
        steps.setdefault(node.history, set()).update(node.checkpoints)
    unknown = dict.fromkeys(("base_step", "bytes", "raw_bytes", "committed_unix_s", "verified", "proven", "suspect"))
    pinned = {pinned.step for pinned in state.record.pinned}
    return [
        {
            "number": number,
            "parent": None,
            "parent_step": None,
            "checkpoints": [
                {
                    "step": step,
                    "form": "full",
                    **unknown,
                    "kept": step in pinned,
                    "kept_for": "",
                    "problem": "",
                    "left": False,
                }
                for step in sorted(found)
            ],
        }
        for number, found in sorted(steps.items())
        if found
    ]
