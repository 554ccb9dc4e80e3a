"""Curves of this and of earlier starts of runs, and how those ended: from the history files."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast_core.naming import STOPPED_BY_OPERATOR
from holdfast_daemon.console.serving.request_guard import RefusedRequestError
from holdfast_daemon.history.history_reader import HistoryError, RunHistory
from holdfast_daemon.history.history_tables import LOGGED, MEMORY, QUANTITIES
from holdfast_daemon.history.rows import Curve
from holdfast_proto import keys, run_files
from holdfast_proto.limits import MOST_LOGGED_NAMES

MOST_POINTS = 5000
MOST_NAMES = 2 * MOST_LOGGED_NAMES
MOST_RUNS = 1000
_DROPPED = {"quantity"}
_ENDED = ("finished", "failed")
"""Phases of a run that has ended, as a status spells them."""
_UNKNOWN = "unknown"


def curves(
    directory: Path, run: str, names: list[str], instance: str, *, points: int, since: int, until: int | None
) -> dict[str, Any]:
    """Return the curves of a start of a run. ``instance``: "" for the newest start. Raises RefusedRequestError.

    A run of which no step is kept yet has empty curves.
    """
    known = (*QUANTITIES, MEMORY)
    unknown = [name for name in names if name not in known and not name.startswith(LOGGED)]
    if unknown:
        raise RefusedRequestError(400, f"there is no quantity {unknown[0][:40]!r}: use {', '.join(known)}")
    if len(names) > MOST_NAMES:
        raise RefusedRequestError(400, f"{len(names)} names are too many: ask for {MOST_NAMES} at a time")
    if not 1 <= points <= MOST_POINTS:
        raise RefusedRequestError(400, f"points is {points}: use 1 to {MOST_POINTS}")
    empty: dict[str, list[float]] = {key: [] for key in ("step", "unix_s", "mean", "low", "high", "nonfinite")}
    path = run_files.history(directory, run)
    if not path.is_file():
        return {"curves": {name: dict(empty) for name in names}}
    try:
        history = RunHistory(path)
        starts = [start.instance for start in history.starts()]
        chosen = instance or (starts[-1] if starts else "")
        read = {
            name: history.curve(chosen, name, points=points, since_step=since, until_step=until)
            for name in dict.fromkeys(names)
        }
    except HistoryError as error:
        raise RefusedRequestError(503, str(error)) from None
    return {
        "curves": {name: {k: v for k, v in asdict(curve).items() if k not in _DROPPED} for name, curve in read.items()}
    }


def past_runs(directory: Path, current: dict[str, str]) -> dict[str, Any]:
    """Return the starts of runs that have a history, the newest first. ``current``: run -> instance that runs now.

    A file that cannot be read is left out, and so is a start that was refused: it has neither a step nor an end.
    """
    folder = run_files.history(directory, "run").parent
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.sqlite"))[:MOST_RUNS]:
        if keys.RUN_NAME.fullmatch(path.stem) is None:
            continue
        try:
            history = RunHistory(path)
            starts = history.starts()
            for start in starts:
                ran = _steps_kept(history, start.instance)
                is_current = current.get(path.stem) == start.instance
                end = _end(history.final(start.instance), max(ran.unix_s, default=None))
                if not ran.step and end["end"] == _UNKNOWN and not is_current:
                    continue
                found.append(
                    {
                        "run": path.stem,
                        "instance": start.instance,
                        "created_unix_s": start.created_unix_s,
                        "steps": ran.step[-1] + 1 if ran.step else 0,
                        "current": is_current,
                        # The report of a name is about its newest start.
                        "reported": start is starts[-1] and path.stem not in current,
                        **end,
                    }
                )
        except HistoryError:
            continue
    found.sort(key=lambda start: float(start["created_unix_s"]), reverse=True)
    return {"runs": found, "directory": str(directory)}


def _steps_kept(history: RunHistory, instance: str) -> Curve:
    """Return the steps of a start as one point of a quantity that it has; no point: no step is kept."""
    curves_kept = (history.curve(instance, name, points=1) for name in ("step_s", *QUANTITIES))
    return next((curve for curve in curves_kept if curve.step), Curve("step_s"))


def _end(status: Mapping[str, Any] | None, newest_step_unix_s: float | None) -> dict[str, Any]:
    """Return how a start ended and when, as far as its daemon has kept that. ``status``: from the history."""
    phase, outcome = (str(status.get(name, "")) for name in ("phase", "outcome")) if status is not None else ("", "")
    if status is None or phase not in _ENDED:
        return {
            "end": _UNKNOWN,
            "end_text": "its daemon ended before it could keep the end",
            "health": "unknown",
            "ended_unix_s": newest_step_unix_s,
        }
    if outcome == STOPPED_BY_OPERATOR:
        phase = "stopped"
    loss = "the loss was not finite at the end" if "nonfinite_since" in status else ""
    return {
        "end": phase,
        "end_text": ", but ".join(text for text in (outcome if outcome != phase else "", loss) if text),
        "health": "bad" if phase == "failed" or loss else "ended",
        "ended_unix_s": status["history_unix_s"],
    }
