"""Which calls a rank is in, told by itself: the truth that verdicts are compared with.

A file per rank and generation, mapped into memory, so that writing costs no system call and outlives the process.
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
    """As torch.distributed names it."""
    members: tuple[int, ...]
    """Global ranks; of a message, its sender and its receiver."""
    op: str
    seq: int
    """In the group; of a message, in its channel."""


@dataclass(frozen=True)
class LoggedRank:
    """What a rank told last."""

    marked_unix_s: float
    """When it last entered or left a call or a phase."""
    calls: tuple[LoggedCall, ...]
    """That it is in, oldest first."""


class CallLog:
    """Written by one rank."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._open: dict[int, LoggedCall] = {}
        self._seqs: dict[tuple[str, str, Sequence[int]], int] = {}
        self._entered = 0

    def mark(self) -> None:
        """Say that this rank has come on."""
        # Not time.time(): a clock-jump replaces that.
        told = {
            "marked_unix_s": time.clock_gettime(time.CLOCK_REALTIME),
            "calls": [asdict(call) for call in self._open.values()],
        }
        text = json.dumps(told).encode()
        self._map[: _LENGTH.size + len(text)] = _LENGTH.pack(len(text)) + text

    def count_from(self, group: str, members: Sequence[int], seq: int) -> None:
        """Say how many collectives of a group there were before the first that is logged."""
        self._seqs[group, "collective", tuple(members)] = seq

    def messages(self, group: str) -> int:
        """Return how many sends and receives of a group have been logged."""
        return sum(seq for (name, kind, _), seq in self._seqs.items() if name == group and kind in ("send", "recv"))

    def enter(self, group: str, members: Sequence[int], op: str) -> int:
        """Say that this rank is about to enter a call; return what :meth:`leave` takes."""
        channel = (group, op if op in ("send", "recv") else "collective", tuple(members))
        seq = self._seqs[channel] = self._seqs.get(channel, 0) + 1
        self._entered += 1
        self._open[self._entered] = LoggedCall(group, tuple(members), op, seq)
        self.mark()
        return self._entered

    def leave(self, entered: int) -> None:
        """Say that a call is over."""
        del self._open[entered]
        self.mark()


def log_path(folder: Path, generation: int, rank: int) -> Path:
    """Return where a rank of a generation logs its calls."""
    return folder / f"{generation:05}-{rank:03}.calls"


def read_log(path: Path) -> LoggedRank | None:
    """Return what a rank told last; None if it never told anything, or is writing right now."""
    try:
        raw = path.read_bytes()
        (length,) = _LENGTH.unpack_from(raw)
        told = json.loads(raw[_LENGTH.size : _LENGTH.size + length])
    except (FileNotFoundError, struct.error, ValueError):
        return None
    calls = (LoggedCall(**{**call, "members": tuple(call["members"])}) for call in told["calls"])
    return LoggedRank(told["marked_unix_s"], tuple(calls))
