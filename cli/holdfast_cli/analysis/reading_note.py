"""A line on stderr that counts the files, for people who wait for large dumps."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_PATIENCE_S = 2.0
"""Seconds of reading before the line is shown."""
_CLEAR = "\r\x1b[K"


@contextmanager
def reading_note(stream: TextIO, *, now: Callable[[], float] = time.monotonic) -> Iterator[Callable[[int, int], None]]:
    """Yield what takes the number of files that were read, and of all. ``now``: a clock, in seconds.

    It shows them on one line of a terminal, and takes the line away at the end. Other streams get nothing.
    """
    begun = now()
    is_shown = False

    def note(done: int, total: int) -> None:
        nonlocal is_shown
        if now() - begun >= _PATIENCE_S and stream.isatty():
            is_shown = True
            print(f"{_CLEAR}reading files: {done} of {total}", end="", file=stream, flush=True)

    try:
        yield note
    finally:
        if is_shown:
            print(_CLEAR, end="", file=stream, flush=True)
