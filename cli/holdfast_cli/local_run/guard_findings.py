"""What the guard of a run has found: it writes one JSON object per line into its log."""

import json
from collections import deque
from contextlib import suppress
from pathlib import Path

_SHOWN = 5
_LARGEST_READ_BYTES = 1 << 20


class GuardFindings:
    """Follows the log of a guard. Lines of an earlier run of the same name are left out."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        with suppress(OSError):
            self._offset = log.stat().st_size
        self._rest = b""
        self._newest: deque[str] = deque(maxlen=_SHOWN)

    def newest(self) -> list[str]:
        """Return the newest lines about checkpoints that are not good, oldest first."""
        with suppress(OSError), self._log.open("rb") as stream:
            stream.seek(self._offset)
            data = stream.read(_LARGEST_READ_BYTES)
            self._offset += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._newest.extend(filter(None, map(_finding, lines)))
        return list(self._newest)


def _finding(line: bytes) -> str:
    """Return what a line of the log says about a checkpoint that is not good; else an empty text."""
    try:
        found = json.loads(line)
        return f"guard: {found['line']}" if found["outcome"] != "good" else ""
    except (ValueError, KeyError, TypeError, RecursionError):  # its own log messages are no JSON
        return ""
