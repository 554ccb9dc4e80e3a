"""Reads the history of a run's name, also while a daemon writes it."""

import contextlib
import json
import math
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from holdfast_daemon.history import history_tables
from holdfast_daemon.history.curves import CurveReader
from holdfast_daemon.history.history_tables import LOGGED, MEMORY, QUANTITIES
from holdfast_daemon.history.rows import CheckpointRow, Curve, RunStart, StepRow, checked, nonfinite_names
from holdfast_proto.v1 import store_pb2 as store

_MOST_STATE_BYTES = 128 << 20
"""Largest state that is unpacked. A few bytes in the file could stand for gigabytes."""
_GENERATION_BIT = 40
"""The number of a row is its generation above this bit, and its step below it: rows come in this order."""


_DAMAGE = (
    sqlite3.Error, ValueError, TypeError, LookupError, OverflowError, RecursionError, OSError, DecodeError, zlib.error,
)  # fmt: skip
"""What reading a damaged file raises: tables may lack columns, and columns may hold values of any type."""


class HistoryError(Exception):
    """A history that cannot be read: one line for people."""


@dataclass(frozen=True)
class RunHistory:
    """The history at ``path``. Each method opens the file for itself, so that any thread may call it.

    Raises HistoryError, on construction and in all methods, if the file is missing, damaged or no history.
    """

    path: Path

    def __post_init__(self) -> None:
        with self._opened():
            pass

    def starts(self) -> list[RunStart]:
        """Return all runs of this name, the oldest first."""
        with self._opened() as connection:
            found = connection.execute("SELECT instance, created_unix_s, spec FROM starts ORDER BY number")
            return [_start(*one) for one in found]

    def curve(
        self, instance: str, quantity: str, *, points: int = 1000, since_step: int = 0, until_step: int | None = None
    ) -> Curve:
        """Return a quantity in at most ``points`` buckets, from one step to another one, both included.

        It is one of QUANTITIES, MEMORY, or LOGGED and a name of the script. Steps that a restart undid are left out.
        Raises ValueError for a quantity that cannot exist.
        """
        is_metric = quantity == MEMORY or quantity.startswith(LOGGED)
        if not is_metric:
            _check_quantity(quantity)
        with self._opened() as connection:
            start = _number(connection, instance)
            if start is None:
                return Curve(quantity)
            reader = CurveReader(connection, start)
            if is_metric and not _has_table(connection, "metrics"):
                return Curve(quantity)
            return reader.read(quantity, points=max(points, 1), since_step=since_step, until_step=until_step)

    def quantiles(self, instance: str, quantity: str, ratios: Sequence[float]) -> list[float | None]:
        """Return a quantity's values that these shares of all steps do not exceed; None: no step has one.

        Steps that a restart has undone count too. Old steps that were thinned out do not.
        """
        _check_quantity(quantity)
        condition = f"FROM steps WHERE start = ? AND {quantity} IS NOT NULL"
        with self._opened() as connection:
            start = _number(connection, instance)
            (count,) = connection.execute(f"SELECT count(*) {condition}", (start,)).fetchone()
            found = [
                connection.execute(
                    f"SELECT {quantity} {condition} ORDER BY {quantity} LIMIT 1 OFFSET ?",
                    (start, max(math.ceil(ratio * count) - 1, 0)),
                ).fetchone()
                for ratio in ratios
            ]
            return [None if one is None else checked(one)[0] for one in found]

    def steps_after(self, instance: str, row: int, limit: int = 1000) -> list[StepRow]:
        """Return the rows that follow number ``row`` in the order in which they were counted; -1: from the first.

        The rows include steps that a restart has undone. Rows of old steps may have been thinned out.
        """
        after = divmod(row, 1 << _GENERATION_BIT)
        with self._opened() as connection:
            start = _number(connection, instance)
            found = connection.execute(
                "SELECT * FROM steps WHERE start = ? AND (generation, step) > (?, ?) ORDER BY generation, step LIMIT ?",
                (start, *after, limit),
            )
            return [_step_row(*one) for one in found]

    def newest_row(self, instance: str) -> int:
        """Return the number of the newest row of a start; -1: there is none."""
        with self._opened() as connection:
            found = connection.execute(
                "SELECT generation, step FROM steps WHERE start = ? ORDER BY generation DESC, step DESC LIMIT 1",
                (_number(connection, instance),),
            ).fetchone()
            return -1 if found is None else _row_number(*checked(found))

    def checkpoints(self, instance: str) -> list[CheckpointRow]:
        """Return all committed checkpoints of a start, the oldest first."""
        with self._opened() as connection:
            found = connection.execute(
                "SELECT generation, step, unix_s, raw_bytes, stored_bytes, duration_s FROM checkpoints "
                "WHERE start = ? ORDER BY unix_s",
                (_number(connection, instance),),
            )
            return [CheckpointRow(*checked(one)) for one in found]

    def final(self, instance: str) -> Mapping[str, Any] | None:
        """Return the newest status of a start: its RunStatus, and ``slowest_ranks``; None: there is none.

        ``history_unix_s`` is the Unix time at which it was kept.
        """
        with self._opened() as connection:
            found = connection.execute(
                "SELECT unix_s, status FROM finals WHERE start = ?", (_number(connection, instance),)
            ).fetchone()
            return None if found is None else {**_fields(found[1]), "history_unix_s": checked(found[:1])[0]}

    def kept_state(self, instance: str) -> tuple[float, store.KeptState] | None:
        """Return the run as its daemon knew it last, with the Unix time of that; None: no daemon has kept it."""
        with self._opened() as connection:
            if not _has_table(connection, "states"):
                return None
            found = connection.execute(
                "SELECT unix_s, state FROM states WHERE start = ?", (_number(connection, instance),)
            ).fetchone()
            if found is None:
                return None
            return checked(found[:1])[0], store.KeptState.FromString(_unpacked(found[1]))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise HistoryError(f"no history: {self.path} does not exist")
        try:
            with contextlib.closing(history_tables.open_for_reading(self.path)) as connection:
                yield connection
        except history_tables.ForeignFileError as error:
            raise HistoryError(str(error)) from error
        except _DAMAGE as error:
            raise HistoryError(f"the history {self.path} cannot be read: {error}") from error


def _start(instance: str, created_unix_s: float, spec: str) -> RunStart:
    if not isinstance(instance, str):
        raise ValueError("a start in it has a name that is no text")
    (unix_s,) = checked((created_unix_s,))
    return RunStart(instance, unix_s, _fields(spec))


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of an object in JSON; none for an empty text. Raises ValueError for anything else."""
    fields = json.loads(text) if text else {}
    if not isinstance(fields, dict):
        raise ValueError("it holds a value that is no object")
    return fields


def _unpacked(data: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(data, _MOST_STATE_BYTES)
    if not unpacking.eof:
        raise ValueError("the state in it is cut off, or too large")
    return unpacked


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether the file has a table: those of an earlier Holdfast lack some."""
    found = connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)).fetchone()
    return found is not None


def _check_quantity(quantity: str) -> None:
    """Raise ValueError unless the name is a column: it becomes a part of queries."""
    if quantity not in QUANTITIES:
        raise ValueError(f"no quantity {quantity[:80]!r}: use one of {', '.join(QUANTITIES)}")


def _number(connection: sqlite3.Connection, instance: str) -> int | None:
    found = connection.execute("SELECT number FROM starts WHERE instance = ?", (instance,)).fetchone()
    return None if found is None else int(found[0])


def _row_number(generation: int, step: int) -> int:
    return (generation << _GENERATION_BIT) + step


def _step_row(*row: Any) -> StepRow:
    _, generation, step, unix_s, nonfinite, *values = checked(row, nullable=len(QUANTITIES))
    known = {name: value for name, value in zip(QUANTITIES, values, strict=True) if value is not None}
    return StepRow(_row_number(generation, step), generation, step, unix_s, known, nonfinite_names(nonfinite))
