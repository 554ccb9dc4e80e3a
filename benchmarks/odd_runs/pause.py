"""The pause of one rank, and the file in which the rank logs when it began and ended."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class LoggedPause:
    """A pause as its rank logged it, in Unix times of the machine's clock."""

    rank: int
    generation: int
    began_s: float
    ended_s: float | None = None
    """Time of the end. None: the pause has not ended."""
    moves_s: tuple[float, ...] = ()
    """Times of the moves that the rank logged."""


class PauseLog:
    """The log of one rank in one generation, one line for each event."""

    def __init__(self, folder: Path, *, rank: int, generation: int) -> None:
        self._path = folder / f"{generation:03}-{rank:03}.pauses"

    def note(self, event: str) -> None:
        """Append an event with its time."""
        with self._path.open("a") as file:
            file.write(json.dumps({"event": event, "unix_s": time.time()}) + "\n")


def read_pauses(folder: Path) -> list[LoggedPause]:
    """Return all pauses that ranks logged, in the order in which they began."""
    found = []
    for path in folder.glob("*.pauses"):
        generation, rank = map(int, path.stem.split("-"))
        found += _pauses_of(rank, generation, path.read_text().splitlines())
    return sorted(found, key=lambda pause: pause.began_s)


def _pauses_of(rank: int, generation: int, lines: Sequence[str]) -> list[LoggedPause]:
    found: list[LoggedPause] = []
    for event in map(json.loads, lines):
        at_s = event["unix_s"]
        match event["event"]:
            case "begin":
                found.append(LoggedPause(rank, generation, at_s))
            case "end":
                found[-1] = replace(found[-1], ended_s=at_s)
            case "move":
                found[-1] = replace(found[-1], moves_s=(*found[-1].moves_s, at_s))
    return found


class Pause:
    """A pause of some seconds, or an endless one. Use it with ``with``. Ask ``is_active`` between pieces of work."""

    def __init__(self, log: PauseLog, *, lasts_s: float, endless: bool) -> None:
        self._log = log
        self.lasts_s = lasts_s
        self.endless = endless
        self._until_s = 0.0

    def __enter__(self) -> "Pause":
        self._log.note("begin")
        self._until_s = time.monotonic() + self.lasts_s
        return self

    def __exit__(self, *_: object) -> None:
        self._log.note("end")

    def is_active(self) -> bool:
        """Return whether the pause is not over yet."""
        return self.endless or time.monotonic() < self._until_s

    @property
    def left_s(self) -> float:
        """Seconds until the end. They are infinite for an endless pause."""
        return float("inf") if self.endless else max(0.0, self._until_s - time.monotonic())

    def moved(self) -> None:
        """Log a move, for pauses that are counted from the last move."""
        self._log.note("move")


def rest(pause: Pause) -> None:
    """Sleep until the pause is over."""
    if pause.endless:
        while True:
            time.sleep(3600.0)
    time.sleep(pause.left_s)
