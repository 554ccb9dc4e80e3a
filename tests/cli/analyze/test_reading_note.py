"""The line that counts the files while large dumps are read."""

import io

import pytest

from holdfast_cli.commands.analyze import reading_note


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written_to(stream: io.StringIO, *times: float) -> str:
    """Return what is written if a file is read at each of these times, in seconds."""
    clock = iter((0.0, *times))
    with reading_note(stream, now=lambda: next(clock)) as note:
        for number in range(len(times)):
            note(number + 1, len(times))
    return stream.getvalue()


def test_a_terminal_gets_the_line_once_reading_takes_long_and_loses_it_at_the_end() -> None:
    assert written_to(Terminal(), 1.0, 1.9) == ""
    text = written_to(Terminal(), 1.0, 2.0, 3.0)
    assert text.split("\r\x1b[K") == ["", "reading files: 2 of 3", "reading files: 3 of 3", ""]


def test_what_is_no_terminal_gets_nothing() -> None:
    assert written_to(io.StringIO(), 1.0, 2.0, 99.0) == ""


def test_the_line_is_taken_away_before_an_error_is_shown() -> None:
    stream, clock = Terminal(), iter((0.0, 5.0))
    with pytest.raises(ValueError, match="damaged"), reading_note(stream, now=lambda: next(clock)) as note:
        note(1, 2)
        raise ValueError("damaged")
    assert stream.getvalue().endswith("1 of 2\r\x1b[K")
