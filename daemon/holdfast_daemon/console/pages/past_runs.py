"""Curves, and steps as they come, of this and of earlier starts of runs: from the history files."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast_daemon.console.serving.guard import RefusedRequestError
from holdfast_daemon.history.reader import HistoryError, RunHistory
from holdfast_daemon.history.schema import QUANTITIES
from holdfast_proto import keys, run_files

MOST_POINTS = 5000
MOST_RUNS = 1000
_DROPPED = {"quantity"}


def curves(
    directory: Path, run: str, names: list[str], instance: str, *, points: int, since: int, until: int | None
) -> dict[str, Any]:
    """Return the curves of a start of a run. ``instance``: "" for the newest start. Raises RefusedRequestError.

    A run of which no step is kept yet has empty curves.
    """
    unknown = [name for name in names if name not in QUANTITIES]
    if unknown:
        raise RefusedRequestError(400, f"there is no quantity {unknown[0][:40]!r}: use {', '.join(QUANTITIES)}")
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
    """Return all starts of runs that have a history, the newest first. ``current``: run -> instance that runs now.

    A file that cannot be read is left out.
    """
    folder = run_files.history(directory, "run").parent
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.sqlite"))[:MOST_RUNS]:
        if keys.RUN_NAME.fullmatch(path.stem) is None:
            continue
        try:
            history = RunHistory(path)
            for start in history.starts():
                steps = history.curve(start.instance, "step_s", points=1).step
                found.append(
                    {
                        "run": path.stem,
                        "instance": start.instance,
                        "created_unix_s": start.created_unix_s,
                        "steps": steps[-1] + 1 if steps else 0,
                        "current": current.get(path.stem) == start.instance,
                    }
                )
        except HistoryError:
            continue
    found.sort(key=lambda start: float(start["created_unix_s"]), reverse=True)
    return {"runs": found}
