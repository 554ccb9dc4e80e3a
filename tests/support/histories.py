"""Rows for histories of runs."""

from collections.abc import Iterable
from pathlib import Path

from holdfast_daemon.history.history_file import HistoryFile, StartRows
from holdfast_daemon.history.history_reader import RunHistory
from holdfast_daemon.history.history_tables import QUANTITIES
from holdfast_daemon.history.rows import CountedStep
from holdfast_proto import run_files

BEGUN_UNIX_S = 1_700_000_000.0
STEP_S = 0.5


def counted(step: int, generation: int = 1, *, nonfinite: tuple[str, ...] = (), **values: float) -> CountedStep:
    """Return a step with the values given."""
    mask = sum(1 << QUANTITIES.index(name) for name in nonfinite)
    numbers = tuple(values.get(name) for name in QUANTITIES)
    return CountedStep(generation, step, BEGUN_UNIX_S + step * STEP_S, mask, numbers)


def write_steps(directory: Path, steps: Iterable[CountedStep], run: str = "r", instance: str = "i") -> RunHistory:
    """Write steps in one batch, and return the history."""
    HistoryFile(directory, run).write([(instance, StartRows(steps=list(steps)))])
    return RunHistory(run_files.history(directory, run))
