"""Tells from the rows of a log that a run has lost its loss: it is in no row any more, or it is exactly 0.

Both hide a dead run: some trainers leave a NaN out of what they write, others write it as 0.0. The loss is missing
after

    16 rows without a loss; or after 6 times the most that this log had between two losses, if that is more

The daemon waits longer (missing_loss.py), because most steps of a run report nothing. A row of a log is a report. The
loss is zero after five zeros in a row, if each of the eight losses before was above 0.001. A policy loss is often
exactly 0, and a small loss is printed as 0.0000: both have zeros or small losses before.
"""

from collections import deque
from dataclasses import dataclass

from holdfast_cli.loss_logs.log_rows import LogRow
from holdfast_core.detectors.numbers.missing_loss import HABIT_RATIO

_MISSING, _ZERO = "missing_loss", "zero_loss"
_MISSING_ROWS = 16
_LOSSES_TO_KNOW_HABIT = 3
_ZEROS, _LOSSES_BEFORE = 5, 8
_LEAST_BEFORE = 0.001


@dataclass(frozen=True)
class LostLoss:
    """How the loss of a run was lost."""

    kind: str
    first: LogRow
    """Row that begins it."""
    message: str


class LossSearch:
    """Sees the rows in their order, one for each step."""

    def __init__(self) -> None:
        self.lost: LostLoss | None = None
        """What was found, while it lasts."""
        self._losses = 0
        self._most_between = 0
        """Most rows between two losses."""
        self._before: deque[float] = deque(maxlen=_LOSSES_BEFORE)
        """Newest losses, without the zeros that are being counted."""
        self._missing, self._zeros = _Streak(), _Streak()

    def resume(self) -> None:
        """Begin anew, as the run does: how often it writes a loss stays known."""
        self.lost = None
        self._before.clear()
        self._missing, self._zeros = _Streak(), _Streak()

    def see(self, row: LogRow) -> LostLoss | None:
        """Return what this row shows for the first time."""
        if row.loss is None:
            return self._see_missing(row)
        self._losses += 1
        self._most_between = max(self._most_between, self._missing.rows)
        self._missing = _Streak()
        if self.lost is not None and (row.loss != 0.0 or self.lost.kind == _MISSING):
            self.lost = None
        if row.loss == 0.0:
            return self._see_zero(row)
        self._before.extend([0.0] * min(self._zeros.rows, _LOSSES_BEFORE))
        self._before.append(row.loss)
        self._zeros = _Streak()
        return None

    def _see_missing(self, row: LogRow) -> LostLoss | None:
        if row.validation_loss is not None or self._losses < _LOSSES_TO_KNOW_HABIT:
            return None
        self._missing.count(row)
        if self._missing.rows != max(_MISSING_ROWS, HABIT_RATIO * self._most_between + 1):
            return None
        return self._found(_MISSING, "is missing", self._missing)

    def _see_zero(self, row: LogRow) -> LostLoss | None:
        self._zeros.count(row)
        is_full = len(self._before) == _LOSSES_BEFORE
        if self._zeros.rows != _ZEROS or not is_full or min(self._before) <= _LEAST_BEFORE:
            return None
        return self._found(_ZERO, "is exactly 0", self._zeros)

    def _found(self, kind: str, what: str, rows: "_Streak") -> LostLoss:
        assert rows.first is not None, "rows are counted"
        message = f"the loss {what} from step {rows.first.step} on, and the log continues"
        self.lost = LostLoss(kind, rows.first, message)
        return self.lost


@dataclass
class _Streak:
    """Rows of one kind, one after the other."""

    first: LogRow | None = None
    rows: int = 0

    def count(self, row: LogRow) -> None:
        self.first = self.first or row
        self.rows += 1
