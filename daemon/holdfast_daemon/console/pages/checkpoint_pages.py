"""The checkpoints of a run: those of a folder on this machine, else the steps that the nodes report."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.format import keeping
from holdfast_checkpoint.store.overview import FoundCheckpoint, FoundHistory, histories_at, needed_by
from holdfast_core.model import CoreState
from holdfast_daemon.console.serving.request_guard import RefusedRequestError
from holdfast_daemon.history.history_reader import HistoryError, RunHistory
from holdfast_daemon.history.rows import CheckpointRow
from holdfast_proto import run_files

_AT_URL = "the checkpoints are in an object store, which the console does not read"


def checkpoint_list(state: CoreState, directory: Path) -> dict[str, Any]:
    """Return the histories and their checkpoints. It reads files: call it outside of event loops.

    ``directory`` is the daemon's, with the histories of its runs.
    """
    location = state.spec.checkpoint_directory
    found, note = histories_at(location, at_url=_AT_URL)
    histories = [_history(one) for one in found]
    if note and state.record.phase:
        histories = _reported(state, _commits(state, directory))
        note += ": the steps are those that nodes report" if histories else ""
    return {"histories": histories, "location": location, "note": note}


def release_checkpoint(state: CoreState, step: int) -> str:
    """Unpin a checkpoint of the present line of training; return what was done. Raises RefusedRequestError."""
    histories, reason = histories_at(state.spec.checkpoint_directory, at_url=_AT_URL)
    if reason:
        raise RefusedRequestError(409, f"{reason}: use `holdfast checkpoint release {step}` where they can be reached")
    found = (one for history in histories for one in history.checkpoints)
    chosen = next((one for one in found if one.step == step and not one.is_left), None)
    if chosen is None:
        raise RefusedRequestError(404, f"there is no checkpoint of step {step}")
    if not chosen.kept:
        raise RefusedRequestError(409, f"the checkpoint of step {step} is not kept")
    try:
        keeping.release(chosen.directory)
    except CheckpointError as error:
        raise RefusedRequestError(409, str(error)) from None
    return chosen.release_line


def _history(found: FoundHistory) -> dict[str, Any]:
    record = found.record
    return {
        "number": found.number,
        # 0 is no history: this one begins with the seed, as one without a record does.
        "parent": record.parent if record is not None else 0,
        "parent_step": record.parent_step if record is not None else None,
        "checkpoints": [_checkpoint(one, needed_by(one, found.checkpoints)) for one in found.checkpoints],
    }


def _checkpoint(found: FoundCheckpoint, builders: list[int]) -> dict[str, Any]:
    manifest, mark = found.manifest, found.verification
    fields: dict[str, Any] = {
        "step": found.step,
        "form": "difference" if manifest is not None and manifest.bases else "full",
        "base_step": manifest.bases[-1] if manifest is not None and manifest.bases else None,
        "bytes": manifest.stored_bytes if manifest is not None else None,
        "raw_bytes": manifest.raw_bytes if manifest is not None else None,
        "committed_unix_s": manifest.committed_unix_s if manifest is not None else None,
        "kept": bool(found.kept),
        "kept_for": found.kept,
        "needed_by": builders,
        "proven": found.is_proven,
        "suspect": found.is_suspect,
        # That all files are there is no proof that every byte is right: only `holdfast checkpoint verify` reads them.
        "verified": None if mark is None else not mark.damages,
        "verified_unix_s": None if mark is None else mark.verified_unix_s,
        "damages": [] if mark is None else list(mark.damages),
        "problem": found.problem,
        "left": found.is_left,
    }
    return fields


def _commits(state: CoreState, directory: Path) -> dict[int, CheckpointRow]:
    """Return what nodes have reported of the commits to the run's place, by step: the newest of each."""
    path = run_files.history(directory, state.spec.run)
    if not path.is_file():
        return {}
    try:
        history = RunHistory(path)
        place = state.spec.checkpoint_directory
        starts = [one.instance for one in history.starts() if one.spec.get("checkpoint_directory") == place]
        rows = [row for instance in starts for row in history.checkpoints(instance)]
    except HistoryError:
        return {}  # the page of the curves says so
    return {row.step: row for row in sorted(rows, key=lambda row: row.unix_s)}


def _reported(state: CoreState, commits: Mapping[int, CheckpointRow]) -> list[dict[str, Any]]:
    """Return the steps that nodes see, by history, with what is known of their commits."""
    steps: dict[int, set[int]] = {}
    for node in state.nodes.values():
        steps.setdefault(node.history, set()).update(node.checkpoints)
    unknown = dict.fromkeys(("base_step", "proven", "suspect", "verified", "verified_unix_s"))
    pinned = {pinned.step for pinned in state.record.pinned}
    return [
        {
            "number": number,
            "parent": None,
            "parent_step": None,
            "checkpoints": [
                {
                    "step": step,
                    "form": "",
                    **unknown,
                    "bytes": commits[step].stored_bytes if step in commits else None,
                    "raw_bytes": commits[step].raw_bytes if step in commits else None,
                    "committed_unix_s": commits[step].unix_s if step in commits else None,
                    # A release at the place of the files is not reported.
                    "kept": True if step in pinned else None,
                    "kept_for": "an incident, unless it was released since" if step in pinned else "",
                    "needed_by": [],
                    "damages": [],
                    "problem": "",
                    "left": False,
                }
                for step in sorted(found)
            ],
        }
        for number, found in sorted(steps.items())
        if found
    ]
