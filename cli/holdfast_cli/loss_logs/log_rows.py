"""Reads a training log row by row: CSV with any usual separator, or one JSON object in each line.

Nothing but the present row is kept, so a log may be of any length. A refusal names the file, the row and the column.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holdfast_cli.errors import ConfigurationError
from holdfast_cli.loss_logs.log_columns import LogColumns, find_columns

_MOST_LINE_CHARACTERS = 1 << 20
_SEPARATORS = (",", "\t", ";", "|")
_EMPTY = frozenset({"", "null", "none", "n/a", "na", "-"})
_LARGEST_STEP = 1 << 53


@dataclass(frozen=True, slots=True)
class LogRow:
    """The numbers of one row. None: the cell is empty. A loss may be NaN or infinite."""

    row: int
    """Number of the line in the file, the first is 1."""
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


def open_log(file: BinaryIO, path: str, *, loss: str | None, step: str | None) -> OpenLog:
    """Return the columns and rows of a log. Raises ConfigurationError; so may the rows, when they are read."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    lines = _lines(text, path)
    first = next(lines, None)
    if first is None:
        raise ConfigurationError(f"{path}: the file is empty: give a log with a line of names and a row for each step")
    records = (
        _json_records(first, lines, path) if first[1].lstrip().startswith("{") else _csv_records(first, lines, path)
    )
    names = next(records)[1]
    columns = find_columns([str(name) for name in names], loss=loss, step=step, path=path)
    return OpenLog(columns, _rows(records, [str(name) for name in names], columns, path))


def open_file(path: Path) -> BinaryIO:
    """Open a log. Raises ConfigurationError."""
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}: name a file that you can read") from None


_Line = tuple[int, str]
_Record = tuple[int, Sequence[object]]


def _lines(text: io.TextIOWrapper, path: str) -> Iterator[_Line]:
    """Yield the lines that are not blank, with their numbers."""
    number = 0
    try:
        while line := text.readline(_MOST_LINE_CHARACTERS):
            number += 1
            if len(line) >= _MOST_LINE_CHARACTERS:
                raise ConfigurationError(f"{path}: row {number}: longer than {_MOST_LINE_CHARACTERS} characters")
            if "\0" in line:
                raise ConfigurationError(f"{path}: row {number}: not text: give a CSV file, or JSON lines")
            if line.strip():
                yield number, line
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{path}: row {number + 1} or later: not text in UTF-8: save the log as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: row {number + 1}: {error.strerror}: name a file that you can read") from None


def _csv_records(first: _Line, lines: Iterator[_Line], path: str) -> Iterator[_Record]:
    """Yield the names, then the cells of each row."""
    separator = max(_SEPARATORS, key=first[1].count)
    number, names = first[0], next(csv.reader([first[1]], delimiter=separator), [])
    yield number, [name.strip() for name in names]
    current = number

    def raw() -> Iterator[str]:
        nonlocal current
        for current, line in lines:  # noqa: B007 - the number of the line is read below
            yield line

    reader = csv.reader(raw(), delimiter=separator, strict=True)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ConfigurationError(f"{path}: row {current}: {error}") from None
        if cells is None:
            return
        if len(cells) > len(names) and any(cell.strip() for cell in cells[len(names) :]):
            raise ConfigurationError(
                f"{path}: row {current}: {len(cells)} cells under {len(names)} names: is {separator!r} the separator?"
            )
        yield current, cells


def _json_records(first: _Line, lines: Iterator[_Line], path: str) -> Iterator[_Record]:
    """Yield the names, then the values of each object in their order. Names are those of the first 100 objects.

    Trackers write the loss and the evaluation in objects of their own, so one object does not show all names.
    """
    head = [(first[0], _parsed(first, path))]
    for line in lines:
        head.append((line[0], _parsed(line, path)))
        if len(head) >= 100:
            break
    names = list(dict.fromkeys(name for _, entry in head for name in entry))
    yield first[0], names
    for number, entry in head:
        yield number, [entry.get(name) for name in names]
    for line in lines:
        entry = _parsed(line, path)
        yield line[0], [entry.get(name) for name in names]


def _parsed(line: _Line, path: str) -> dict[str, object]:
    try:
        entry = json.loads(line[1])
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{path}: row {line[0]}: not valid JSON: give one object in each line") from None
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{path}: row {line[0]}: not a JSON object: give one object in each line")
    return entry


def _rows(records: Iterator[_Record], names: Sequence[str], columns: LogColumns, path: str) -> Iterator[LogRow]:
    places = {quantity: names.index(column) for quantity, column in columns.named().items()}
    step_place = places.pop("step", None)
    for index, (number, cells) in enumerate(records):
        values = {
            quantity: _number(cells[place], number, names[place], path) if place < len(cells) else None
            for quantity, place in places.items()
        }
        step = index
        if step_place is not None:
            known = _step(cells[step_place] if step_place < len(cells) else None, number, names[step_place], path)
            if known is None:
                continue  # a row without a step belongs to none: a summary, or a setting
            step = known
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
