"""Reads a training log row by row: CSV with any usual separator, one JSON object in each line, or one JSON document.

Nothing but the present row is kept, so a log may be of any length, unless it is one JSON document. A refusal names the
file, the row and the column.
"""

import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from holdfast_cli.errors import ConfigurationError
from holdfast_cli.loss_logs.log_columns import LogColumns, find_columns
from holdfast_cli.loss_logs.log_document import begins_document, read_document
from holdfast_cli.loss_logs.log_lines import LogLines, NumberedLine

_SEPARATORS = (",", "\t", ";", "|")
_WITHIN_QUOTES = ("unexpected end of data", "field larger than field limit")
"""What Python's reader says of a quote that no other one closes: in a long log, it meets its limit first."""
_EMPTY = frozenset({"", "null", "none", "n/a", "na", "-"})
_LARGEST_STEP = 1 << 53


@dataclass(frozen=True, slots=True)
class LogRow:
    """The numbers of one row. None: the cell is empty. A loss may be NaN or infinite."""

    row: int
    """Number of the line in the file, or of the object in a JSON document; the first is 1."""
    step: int
    loss: float | None = None
    validation_loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    tokens: float | None = None


@dataclass(frozen=True)
class OpenLog:
    """A log whose columns are known."""

    columns: LogColumns
    rows: Iterator[LogRow]
    """They come once."""
    lines: LogLines
    """Its ``cut_row`` is known once the rows are read."""


def open_log(file: BinaryIO, path: str, *, loss: str | None, step: str | None) -> OpenLog:
    """Return the columns and rows of a log. Raises ConfigurationError; so may the rows, when they are read."""
    lines = LogLines(file, path)
    first = lines.first()
    if first is None:
        raise ConfigurationError(f"{path}: the file is empty: give a log with a line of names and a row for each step")
    if begins_document(first[1]):
        records = _records_of(enumerate(read_document(lines, path), 1))
    else:
        lines.check_length(*first)
        lines.check(*first)
        is_json = first[1].lstrip().startswith("{")
        records = _records_of(_json_lines(first, lines, path)) if is_json else _csv_records(first, lines, path)
    names = [str(name) for name in next(records)[1]]
    columns = find_columns(names, loss=loss, step=step, path=path)
    return OpenLog(columns, _rows(records, names, columns, lines, path), lines)


@contextmanager
def open_file(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    """Open a log, and return its name for people too. ``-`` is stdin.

    Raises ConfigurationError.
    """
    if str(path) == "-":
        if sys.stdin is None:
            raise ConfigurationError("stdin is closed: give the log there, or name a file")
        yield sys.stdin.buffer, "stdin"
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}: name a file that you can read") from None
    with file:
        yield file, str(path)


_Record = tuple[int, Sequence[object]]


def _csv_records(first: NumberedLine, lines: LogLines, path: str) -> Iterator[_Record]:
    """Yield the names, then the cells of each row."""
    separator = max(_SEPARATORS, key=first[1].count)
    number, names = first[0], next(csv.reader([first[1]], delimiter=separator), [])
    yield number, [name.strip() for name in names]
    current = begun = number

    def raw() -> Iterator[str]:
        nonlocal current, begun
        for current, line in lines:
            begun = begun or current
            yield line

    reader = csv.reader(raw(), delimiter=separator, strict=True)
    while True:
        begun = 0
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if lines.leave_out(begun):
                return
            if any(text in str(error) for text in _WITHIN_QUOTES):
                what = "a quote opens in this row and is not closed: close it, or take it out"
                raise ConfigurationError(f"{path}: row {begun}: {what}") from None
            raise ConfigurationError(f"{path}: row {current}: {error}") from None
        if cells is None or (len(cells) < len(names) and lines.leave_out(current)):
            return
        if len(cells) > len(names) and any(cell.strip() for cell in cells[len(names) :]):
            raise ConfigurationError(
                f"{path}: row {current}: {len(cells)} cells under {len(names)} names: is {separator!r} the separator?"
            )
        yield current, cells


def _records_of(entries: Iterator[tuple[int, dict[str, object]]]) -> Iterator[_Record]:
    """Yield the names, then the values of each object in their order. Names are those of the first 100 objects.

    Trackers write the loss and the evaluation in objects of their own, so one object does not show all names.
    """
    head = list(islice(entries, 100))
    names = list(dict.fromkeys(name for _, entry in head for name in entry))
    yield head[0][0], names
    for number, entry in chain(head, entries):
        yield number, [entry.get(name) for name in names]


def _json_lines(first: NumberedLine, lines: LogLines, path: str) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in chain([first], lines):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            if lines.leave_out(number):
                return
            raise ConfigurationError(f"{path}: row {number}: not valid JSON: give one object in each line") from None
        if not isinstance(entry, dict):
            raise ConfigurationError(f"{path}: row {number}: not a JSON object: give one object in each line")
        lines.open_row = 0  # the brace at its end shows that it is whole
        yield number, entry


def _rows(
    records: Iterator[_Record], names: Sequence[str], columns: LogColumns, lines: LogLines, path: str
) -> Iterator[LogRow]:
    """Yield the rows, without a last one that its writer has not finished.

    A last line without a line end may be a whole row. It counts as one unless it cannot be read, or its step goes
    back: half of a number is a smaller number.
    """
    places = {quantity: names.index(column) for quantity, column in columns.named().items()}
    step_place = places.pop("step", None)
    newest = -1
    for index, (number, cells) in enumerate(records):
        try:
            values = {
                quantity: _number(cells[place], number, names[place], path) if place < len(cells) else None
                for quantity, place in places.items()
            }
            step: int | None = index
            if step_place is not None:
                step = _step(cells[step_place] if step_place < len(cells) else None, number, names[step_place], path)
        except ConfigurationError:
            if lines.leave_out(number):
                return
            raise
        if step is None:
            continue  # a row without a step belongs to none: a summary, or a setting
        if step < newest and lines.leave_out(number):
            return
        newest = step
        yield LogRow(number, step, **values)


def _step(cell: object, row: int, column: str, path: str) -> int | None:
    value = _number(cell, row, column, path)
    if value is None:
        return None
    if not math.isfinite(value) or value != int(value) or not 0 <= value <= _LARGEST_STEP:
        raise ConfigurationError(f"{path}: row {row}, column {column!r}: {_shown(cell)} is no step: use whole numbers")
    return int(value)


def _number(cell: object, row: int, column: str, path: str) -> float | None:
    """Return the number in a cell. Megatron and others write NaN in several ways, which Python knows."""
    if cell is None:
        return None
    if isinstance(cell, str):
        text = cell.strip()
        if text.lower() in _EMPTY:
            return None
        try:
            return float(text)
        except ValueError:
            pass
    elif isinstance(cell, int | float) and not isinstance(cell, bool):
        try:
            return float(cell)
        except OverflowError:
            pass
    raise ConfigurationError(f"{path}: row {row}, column {column!r}: {_shown(cell)} is no number: correct the cell")


def _shown(cell: object) -> str:
    text = repr(cell)
    return text if len(text) <= 60 else f"{text[:57]}..."
