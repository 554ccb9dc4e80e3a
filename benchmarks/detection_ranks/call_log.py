"""The calls that a rank is in, as the rank itself logs them. Verdicts are compared with this log.

Each rank has one file per generation. It is mapped into memory: writing costs no system call and survives the process.
"""

import json
import mmap
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_LENGTH = struct.Struct("<I")
_BYTES = 1 << 16


@dataclass(frozen=True)
class LoggedCall:
    """A call that a rank has entered and not left."""

    group: str
    """Name of the group in torch.distributed."""
    members: tuple[int, ...]
    """Global ranks of the group. For a message: its sender and its receiver."""
    op: str
    seq: int
    """Number of the call in its group or, for a message, in its channel."""


@dataclass(frozen=True)
class LoggedRank:
    """The newest entry of a rank's log."""

    marked_unix_s: float
    """Time at which the rank last entered or left a call or a phase."""
    calls: tuple[LoggedCall, ...]
    """Calls that the rank is in, oldest first."""


class CallLog:
    """The log that one rank writes."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._open: dict[int, LoggedCall] = {}
        self._seqs: dict[tuple[str, str, Sequence[int]], int] = {}
        self._entered = 0

    def mark(self) -> None:
        """Log the time, because this rank has made progress."""
        # Not time.time(): the fault clock-jump replaces that function.
        entry = {
            "marked_unix_s": time.clock_gettime(time.CLOCK_REALTIME),
            "calls": [asdict(call) for call in self._open.values()],
        }
        text = json.dumps(entry).encode()
        self._map[: _LENGTH.size + len(text)] = _LENGTH.pack(len(text)) + text

    def count_from(self, group: str, members: Sequence[int], seq: int) -> None:
        """Set the number of collectives that a group had before the first one that is logged."""
        self._seqs[group, "collective", tuple(members)] = seq

    def messages(self, group: str) -> int:
        """Return the number of sends and receives of a group that have been logged."""
        return sum(seq for (name, kind, _), seq in self._seqs.items() if name == group and kind in ("send", "recv"))

    def enter(self, group: str, members: Sequence[int], op: str) -> int:
        """Log that this rank is about to enter a call; return the argument for :meth:`leave`."""
        channel = (group, op if op in ("send", "recv") else "collective", tuple(members))
        seq = self._seqs[channel] = self._seqs.get(channel, 0) + 1
        self._entered += 1
        self._open[self._entered] = LoggedCall(group, tuple(members), op, seq)
        self.mark()
        return self._entered

    def leave(self, entered: int) -> None:
        """Log that a call is over."""
        del self._open[entered]
        self.mark()


def log_path(folder: Path, generation: int, rank: int) -> Path:
    """Return the path of a rank's log in a generation."""
    return folder / f"{generation:05}-{rank:03}.calls"


def read_log(path: Path) -> LoggedRank | None:
    """Return the newest entry of a log, or None if it has none or is being written right now."""
    try:
        raw = path.read_bytes()
        (length,) = _LENGTH.unpack_from(raw)
        entry = json.loads(raw[_LENGTH.size : _LENGTH.size + length])
    except (FileNotFoundError, struct.error, ValueError):
        return None
    calls = (LoggedCall(**{**call, "members": tuple(call["members"])}) for call in entry["calls"])
    return LoggedRank(entry["marked_unix_s"], tuple(calls))
