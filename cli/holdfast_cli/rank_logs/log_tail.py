"""Reads the lines by which a log grows."""

import os
from collections.abc import Iterator
from pathlib import Path

READ_BYTES = 1 << 16
"""Most bytes of one log that are read at once. A rank that prints faster is shown later, and delays no other."""

LONGEST_LINE_BYTES = 1 << 15
"""A longer line may be shown in pieces."""

LINE_CUT = "[line cut by holdfast]"
"""Mark in a shown line, where a part of it is missing or is shown as the next line."""

_LONGEST_KEPT_BYTES = LONGEST_LINE_BYTES + len(LINE_CUT) + 1
"""The longest line, with a mark and a space."""


class LogTail:
    """Reads one log from an offset on. The file need not exist yet, and is read anew when its agent has emptied it."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._unfinished = b""

    def lines(self) -> list[str]:
        """Return the lines that were completed since the last call, from READ_BYTES of the log at most."""
        try:
            with self._path.open("rb") as stream:
                if stream.seek(0, os.SEEK_END) < self._offset:
                    self._offset, self._unfinished = 0, b""
                stream.seek(self._offset)
                data = stream.read(READ_BYTES)
        except OSError:  # the rank has not begun to write
            return []
        self._offset += len(data)
        *complete, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > _LONGEST_KEPT_BYTES:
            complete.append(b"%s %s" % (self._unfinished, LINE_CUT.encode()))
            self._unfinished = b""
        return [_shown(line) for line in complete]

    def rest(self) -> Iterator[str]:
        """Yield all lines that are left, the unfinished last one too. Only READ_BYTES of them are kept at a time."""
        offset = -1
        while self._offset != offset:
            offset = self._offset
            yield from self.lines()
        if self._unfinished:
            yield _shown(self._unfinished)
            self._unfinished = b""

    def newest(self, count: int) -> list[str]:
        """Skip to the end of the log; return the newest ``count`` lines of what is skipped, complete ones only.

        Of a log with few line ends, such as one with progress bars, only the end is read: it may return fewer lines.
        """
        blocks: list[bytes] = []
        wanted_bytes, line_ends = (count + 1) * LONGEST_LINE_BYTES, 0
        try:
            with self._path.open("rb") as stream:
                start = self._offset = stream.seek(0, os.SEEK_END)
                while start > 0 and line_ends <= count and wanted_bytes > 0:
                    length = min(start, READ_BYTES)
                    start = stream.seek(start - length)
                    blocks.append(stream.read(length))
                    line_ends += blocks[-1].count(b"\n")
                    wanted_bytes -= length
        except OSError:  # the rank has not begun to write
            return []
        *complete, unfinished = b"".join(reversed(blocks)).split(b"\n")
        self._unfinished = _end_of(unfinished)
        if start > 0 and complete:
            complete[0] = b"%s %s" % (LINE_CUT.encode(), complete[0][-LONGEST_LINE_BYTES:])
        return [_shown(_end_of(line)) for line in complete[-count:]]


def _end_of(line: bytes) -> bytes:
    """Return a line, or the mark and its end if it is long."""
    return line if len(line) <= _LONGEST_KEPT_BYTES else b"%s %s" % (LINE_CUT.encode(), line[-LONGEST_LINE_BYTES:])


def _shown(line: bytes) -> str:
    """Return what a terminal would leave of the line: a progress bar has drawn over itself with carriage returns.

    Of such a line, the mark goes with what is drawn over.
    """
    mark = f" {LINE_CUT}".encode()
    if b"\r" in line:
        line = line.removesuffix(mark)
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
