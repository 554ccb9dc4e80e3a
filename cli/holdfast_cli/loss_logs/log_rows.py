"""Reads a training log row by row: CSV with any usual separator, JSON lines, one JSON document, or lines of text.

Nothing but the present row is kept, so a log may be of any length, unless it is one JSON document. A refusal names the
file, the row and the column.
"""

import csv
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from holdfast_cli.errors import SettingsError
from holdfast_cli.loss_logs.log_columns import RUN_MARK, LogColumns, find_columns, is_empty, listed, names_a_loss
from holdfast_cli.loss_logs.log_document import begins_document, read_document
from holdfast_cli.loss_logs.log_lines import MOST_LINE_CHARACTERS, LogLines, NumberedLine
from holdfast_cli.loss_logs.log_text import read_text

_SEPARATORS = (",", "\t", ";", "|")
_WITHIN_QUOTES = ("unexpected end of data", "field larger than field limit")
"""What Python's reader says of a quote that no other one closes: in a long log, it meets its limit first."""
_HEAD_ROWS = 100
"""Rows whose names and steps show what the columns hold."""
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_OF_TOTAL = re.compile(r"\s*/\s*\d+\s*$")
"""The second half of `100/5000`."""
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
    """Return the columns and rows of a log. Raises SettingsError; so may the rows, when they are read."""
    lines = LogLines(file, path)
    first = lines.first()
    if first is None:
        raise SettingsError(f"{path}: the file is empty: give a log with a line of names and a row for each step")
    is_text = False
    if begins_document(first[1]):
        records = _records_of(enumerate(read_document(lines, path), 1))
    elif _is_object(first[1]):
        records = _records_of(_json_lines(first, lines, path))
    elif names_a_loss(_first_cells(first[1]), loss):
        lines.check(*first)
        records = _csv_records(first, lines, path)
    else:
        is_text = True
        records = _records_of(_text_entries(first, lines, path, loss, step))
    names = [str(name) for name in next(records)[1]]
    head = list(islice(records, _HEAD_ROWS))
    columns = find_columns(names, [cells for _, cells in head], loss=loss, step=step, path=path)
    records = chain(head, records)
    if RUN_MARK in columns.loss or (is_text and not columns.step):
        # An export of several runs has rows of the others. Other lines of a text without steps are no steps.
        place = names.index(columns.loss)
        records = (record for record in records if place < len(record[1]) and not is_empty(record[1][place]))
    return OpenLog(columns, _rows(records, names, columns, lines, path), lines)


@contextmanager
def open_file(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    """Open a log, and return its name for people too. ``-`` is stdin.

    Raises SettingsError.
    """
    if str(path) == "-":
        if sys.stdin is None:
            raise SettingsError("stdin is closed: give the log there, or name a file")
        yield sys.stdin.buffer, "stdin"
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}: name a file that you can read") from None
    with file:
        yield file, str(path)


_Record = tuple[int, Sequence[object]]


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _separator(line: str) -> str:
    return max(_SEPARATORS, key=line.count)


def _first_cells(line: str) -> list[str]:
    """Return the cells of the first line; none if it is too long for a row."""
    try:
        cells = next(csv.reader([line], delimiter=_separator(line)), []) if len(line) < MOST_LINE_CHARACTERS else []
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def _text_entries(
    first: NumberedLine, lines: LogLines, path: str, loss: str | None, step: str | None
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the numbers of lines of text. Raises SettingsError if no line has any."""
    none = True
    for entry in read_text(lines.text(), loss=loss, step=step):
        none = False
        yield entry
    if none:
        lines.check_length(*first)
        lines.check(*first)
        raise SettingsError(
            f"{path}: row 1 names no known column of a loss, and no line of text has one: name it with --loss-column, "
            f"one of {listed(_first_cells(first[1]))}"
        )


def _csv_records(first: NumberedLine, lines: LogLines, path: str) -> Iterator[_Record]:
    """Yield the names, then the cells of each row."""
    number, separator, names = first[0], _separator(first[1]), _first_cells(first[1])
    yield number, names
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
                raise SettingsError(f"{path}: row {begun}: {what}") from None
            raise SettingsError(f"{path}: row {current}: {error}") from None
        if cells is None or (len(cells) < len(names) and lines.leave_out(current)):
            return
        if len(cells) > len(names) and any(cell.strip() for cell in cells[len(names) :]):
            raise SettingsError(
                f"{path}: row {current}: {len(cells)} cells under {len(names)} names: is {separator!r} the separator?"
            )
        yield current, cells


def _records_of(entries: Iterator[tuple[int, dict[str, object]]]) -> Iterator[_Record]:
    """Yield the names, then the values of each object in their order. Names are those of the first 100 objects.

    Trackers write the loss and the evaluation in objects of their own, so one object does not show all names.
    """
    head = list(islice(entries, _HEAD_ROWS))
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
            raise SettingsError(f"{path}: row {number}: not valid JSON: give one object in each line") from None
        if not isinstance(entry, dict):
            raise SettingsError(f"{path}: row {number}: not a JSON object: give one object in each line")
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
    step_place, epoch_place = places.pop("step", None), places.pop("epoch", None)
    newest, newest_epoch, before = -1, 0.0, 0
    for index, (number, cells) in enumerate(records):
        try:
            values = {
                quantity: _number(_at(cells, place), number, names[place], path) for quantity, place in places.items()
            }
            step: int | None = index
            if step_place is not None:
                step = _step(_at(cells, step_place), number, names[step_place], path)
        except SettingsError:
            if lines.leave_out(number):
                return
            raise
        if step is None:
            continue  # a row without a step belongs to none: a summary, or a setting
        epoch = newest_epoch if epoch_place is None else _epoch(_at(cells, epoch_place), newest_epoch)
        if before + step < newest < _LARGEST_STEP and epoch > newest_epoch:
            before = newest + 1  # the step begins anew in each epoch
        step, newest_epoch = before + step, epoch
        if step < newest and lines.leave_out(number):
            return
        newest = step
        yield LogRow(number, step, **values)


def _at(cells: Sequence[object], place: int) -> object:
    return cells[place] if place < len(cells) else None


def _epoch(cell: object, before: float) -> float:
    """Return the number in a cell; ``before`` if there is none: an epoch only helps to read the steps."""
    try:
        return float(_OF_TOTAL.sub("", str(cell)))
    except ValueError:
        return before


def _step(cell: object, row: int, column: str, path: str) -> int | None:
    value = _number(_OF_TOTAL.sub("", cell) if isinstance(cell, str) else cell, row, column, path)
    if value is None:
        return None
    if not math.isfinite(value) or value != int(value) or not 0 <= value <= _LARGEST_STEP:
        raise SettingsError(f"{path}: row {row}, column {column!r}: {_shown(cell)} is no step: use whole numbers")
    return int(value)


def _number(cell: object, row: int, column: str, path: str) -> float | None:
    """Return the number in a cell. Megatron and others write NaN in several ways, which Python knows."""
    if is_empty(cell):
        return None
    if isinstance(cell, str):
        text = cell.strip()
        try:
            return float(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
        except ValueError:
            pass
    elif isinstance(cell, int | float) and not isinstance(cell, bool):
        try:
            return float(cell)
        except OverflowError:
            pass
    raise SettingsError(f"{path}: row {row}, column {column!r}: {_shown(cell)} is no number: correct the cell")


def _shown(cell: object) -> str:
    text = repr(cell)
    return text if len(text) <= 60 else f"{text[:57]}..."
