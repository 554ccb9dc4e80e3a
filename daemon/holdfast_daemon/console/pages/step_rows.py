"""New steps of a run, as rows for the live end of its curves."""

import logging
import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from holdfast_core.model import CoreState
from holdfast_daemon.history.history_reader import HistoryError, RunHistory

log = logging.getLogger(__name__)

MOST_ROWS = 500
"""Most rows in one event. More wait for the next one."""
_COLUMNS = ("loss", "grad_norm", "tokens_per_s", "step_s", "learning_rate", "validation_loss")


class _Step(NamedTuple):
    generation: int
    step: int
    row: list[float | None]
    """As it is sent: step, Unix time, then _COLUMNS. None: not reported, or not finite."""
    nonfinite: tuple[str, ...] = ()
    """Those of _COLUMNS that were NaN or infinite."""


class StepRows:
    """Remembers up to where the pages of a run have its steps.

    The steps come from the run's history, which has all of them. While it has none of this start, and on a daemon that
    keeps none, the newest step at each look has to do.
    """

    def __init__(self, path: Path) -> None:
        """``path``: file of the history, which need not exist."""
        self._path = path
        self._row = -1
        self._step = -1
        self._generation = 0
        self._has_failed = False

    def begin(self, state: CoreState | None) -> None:
        """Begin after the newest step: pages get the earlier ones as curves."""
        self._row = self._step = -1
        if state is None:
            return
        self._generation = state.record.generation
        self._step = state.telemetry.loss_step
        try:
            if self._path.is_file():
                history = RunHistory(self._path)
                self._row = history.newest_row(state.spec.instance)
                newest = history.steps_after(state.spec.instance, self._row - 1, 1) if self._row >= 0 else []
                self._step, self._generation = (newest[-1].step, newest[-1].generation) if newest else (-1, 0)
        except HistoryError as error:
            self._failed(error)

    def new(self, state: CoreState | None, now: float) -> Iterator[dict[str, Any]]:
        """Yield the rows since the last call. A restart begins a new event, with the step after which it undid others.

        Pages have no step above that one any more, until the rows that follow.
        """
        for generation, steps in groupby(self._new_steps(state, now), lambda step: step.generation):
            rows = list(steps)
            undone = rows[0].step - 1 if generation > self._generation and rows[0].step <= self._step else None
            self._generation, self._step = generation, rows[-1].step
            bad = {name: [row.step for row in rows if name in row.nonfinite] for name in _COLUMNS}
            yield {
                "rows": [row.row for row in rows],
                "undone_after": undone,
                "nonfinite": {name: steps for name, steps in bad.items() if steps},
            }

    def _new_steps(self, state: CoreState | None, now: float) -> list[_Step]:
        if state is None:
            return []
        if not self._path.is_file():
            return self._newest(state, now)
        try:
            found = RunHistory(self._path).steps_after(state.spec.instance, self._row, MOST_ROWS)
        except HistoryError as error:
            self._failed(error)
            return self._newest(state, now)
        if not found and self._row < 0:
            return self._newest(state, now)  # the first rows of this start are not written yet
        if found:
            self._row = found[-1].row
        sent = (self._generation, self._step)
        return [
            _Step(
                one.generation,
                one.step,
                [one.step, round(one.unix_s, 3), *(one.values.get(name) for name in _COLUMNS)],
                one.nonfinite,
            )
            for one in found
            if (one.generation, one.step) > sent
        ]

    def _newest(self, state: CoreState, now: float) -> list[_Step]:
        telemetry, generation = state.telemetry, state.record.generation
        if (generation, telemetry.loss_step) <= (self._generation, self._step) or telemetry.loss is None:
            return []
        if generation > self._generation and telemetry.loss_step <= state.record.resumed_step:
            return []  # still the number of the generation before
        values: dict[str, float | None] = {name: getattr(telemetry, name) for name in _COLUMNS}
        bad = tuple(name for name, value in values.items() if value is not None and not math.isfinite(value))
        row = [None if name in bad else value for name, value in values.items()]
        return [_Step(generation, telemetry.loss_step, [telemetry.loss_step, round(now, 3), *row], bad)]

    def _failed(self, error: HistoryError) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.warning("the console shows the newest step alone: %s", error)
