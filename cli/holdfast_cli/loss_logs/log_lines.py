"""Splits a log into lines. It tells a last line that its writer may not have finished from all others."""

import io
import re
from collections.abc import Iterator
from typing import BinaryIO

from holdfast_cli.errors import SettingsError

MOST_LINE_CHARACTERS = 1 << 20
MOST_TEXT_CHARACTERS = 1 << 12
"""Of a line of a text log. No trainer writes its numbers behind so much text."""
NumberedLine = tuple[int, str]
"""Number of a line, the first is 1, and its text."""

_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Bytes that are not UTF-8, as the error handler ``surrogateescape`` leaves them."""


class LogLines:
    """Yields lines, and keeps nothing but the present one. Raises SettingsError."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        self._path = path
        self._number = 0
        self._first = ""
        self.open_row = 0
        """Number of the last line, if it has no line end: its writer may not have finished it. 0: not read yet, or
        the last line has one."""
        self.cut_row = 0
        """Number of the last line, if it was left out; else 0."""

    def first(self) -> NumberedLine | None:
        """Return the first line that is not blank, or its first MOST_LINE_CHARACTERS; None for an empty file.

        It is not checked, and the iterator does not yield it.
        """
        while line := self._read():
            self._number += 1
            if line.strip():
                self._first = line
                return self._number, line
        return None

    def whole(self, most_characters: int) -> str:
        """Return :meth:`first` and all that follows, if these are ``most_characters`` at most."""
        try:
            text = self._first + self._text.read(most_characters + 1 - len(self._first))
        except OSError as error:
            raise self._unreadable(error) from None
        if len(text) > most_characters:
            raise SettingsError(
                f"{self._path}: one JSON document of more than {most_characters >> 20} MiB: save it as CSV, or as one "
                "object in each line"
            )
        self.check(1, text)
        return text

    def leave_out(self, number: int) -> bool:
        """Leave out the row ``number`` if it may be unfinished. Return whether it is left out."""
        if number == self.open_row:
            self.cut_row = number
        return self.cut_row > 0

    def check(self, number: int, text: str) -> None:
        """Raise SettingsError unless ``text``, which begins in the row ``number``, is text."""
        if "\0" in text:
            raise SettingsError(f"{self._path}: row {number}: not text: give a CSV file, or JSON")
        if _NOT_UTF8.search(text):
            raise SettingsError(f"{self._path}: row {number}: not text in UTF-8: save the log as UTF-8")

    def check_length(self, number: int, line: str) -> None:
        """Raise SettingsError if a line is too long for a row."""
        if len(line) >= MOST_LINE_CHARACTERS:
            raise SettingsError(f"{self._path}: row {number}: longer than {MOST_LINE_CHARACTERS} characters")

    def __iter__(self) -> Iterator[NumberedLine]:
        """Yield the lines after :meth:`first`. Of one without an end, bytes that are not UTF-8 are replaced."""
        while line := self._read():
            self._number += 1
            self.check_length(self._number, line)
            if not line.endswith(("\n", "\r")):
                self.open_row = self._number
                line = _NOT_UTF8.sub("\ufffd", line)
            self.check(self._number, line)
            if line.strip():
                yield self._number, line

    def text(self) -> Iterator[NumberedLine]:
        """Yield :meth:`first` and all that follows, up to MOST_TEXT_CHARACTERS of each line, and refuse nothing.

        A progress bar writes over its line after a carriage return. Each such part has the number of the line.
        """
        line = self._first
        while line:
            if not line.endswith(("\n", "\r")) and len(line) < MOST_LINE_CHARACTERS:
                self.open_row = self._number
            yield self._number, _NOT_UTF8.sub("\ufffd", line[:MOST_TEXT_CHARACTERS])
            while line and not line.endswith(("\n", "\r")):
                line = self._read()
            self._number += line.endswith("\n")
            line = self._read()

    def _read(self) -> str:
        try:
            return self._text.readline(MOST_LINE_CHARACTERS)
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> SettingsError:
        where = f"{self._path}: row {self._number + 1}"
        return SettingsError(f"{where}: {error.strerror}: name a file that you can read")
