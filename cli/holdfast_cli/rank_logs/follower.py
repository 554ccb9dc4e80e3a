"""Finds the logs of ranks, and follows the output of a run's ranks from one generation to the next."""

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast_cli.errors import CommandError
from holdfast_cli.rank_logs.log_tail import LogTail
from holdfast_proto.run_files import RANK_LOGS

Logs = dict[int, Path]
"""Rank -> log, ascending."""


def logs_by_generation(run_directory: Path) -> dict[int, Logs]:
    """Return the logs of all ranks that have one, by generation. Both ascend."""
    found: dict[int, Logs] = {}
    for path in sorted(run_directory.glob(RANK_LOGS)):
        generation, rank = path.parent.name.partition("-")[2], path.stem.partition("-")[2]
        if generation.isdecimal() and rank.isdecimal():
            found.setdefault(int(generation), {})[int(rank)] = path
    return dict(sorted(found.items()))


def newest_generation(found: dict[int, Logs], since_unix_s: float) -> int | None:
    """Return the newest generation that has written since ``since_unix_s``, or None.

    An earlier start of the run may have left the logs of higher generations.
    """
    written = (number for number, logs in found.items() if any(_is_newer(log, since_unix_s) for log in logs.values()))
    return max(written, default=None)


def chosen_logs(found: dict[int, Logs], generation: int, ranks: Iterable[int]) -> Logs:
    """Return the logs of ``ranks``, or of all ranks, in a generation. Raises CommandError if one has none."""
    logs = found.get(generation)
    if logs is None:
        known = ", ".join(map(str, found)) or "none"
        raise CommandError(f"generation {generation} has no log of a rank: those that have one: {known}")
    wanted = sorted(set(ranks)) or list(logs)
    missing = next((rank for rank in wanted if rank not in logs), None)
    if missing is not None:
        raise CommandError(f"rank {missing} has no log in generation {generation}: {_names(list(logs))} have one")
    return {rank: logs[rank] for rank in wanted}


def _names(ranks: list[int]) -> str:
    is_range = ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2
    return f"ranks {ranks[0]} to {ranks[-1]}" if is_range else f"ranks {', '.join(map(str, ranks))}"


def _is_newer(log: Path, since_unix_s: float) -> bool:
    try:
        return log.stat().st_mtime >= since_unix_s
    except OSError:
        return False


class Line(NamedTuple):
    """One line that a rank has printed."""

    generation: int
    rank: int
    text: str

    @property
    def prefixed(self) -> str:
        """The line with its rank before it."""
        return f"[rank {self.rank}] {self.text}"


class Follower:
    """Reads what the ranks of the newest generation print, or of ``generation`` alone.

    ``ranks``: only these; empty: all. ``since_unix_s``: start of the run; older logs are those of earlier starts.
    """

    def __init__(
        self,
        run_directory: Path,
        *,
        since_unix_s: float,
        ranks: Collection[int] = (),
        generation: int | None = None,
    ) -> None:
        self._run_directory = run_directory
        self._since_unix_s = since_unix_s
        self._ranks = ranks
        self._is_fixed = generation is not None
        self.generation = generation
        """Generation that is read now; None: none has written yet."""
        self._offsets: dict[Path, int] = {}
        self._tails: dict[int, LogTail] = {}

    def skip_present(self) -> None:
        """Leave out what all logs hold now. A rank continues the log that an earlier start of the run has left."""
        for logs in logs_by_generation(self._run_directory).values():
            self._offsets |= {log: log.stat().st_size for log in logs.values()}

    def newest(self, count: int) -> Iterator[Line]:
        """Skip to the end; yield the newest ``count`` lines of each rank."""
        self._tails |= self._new_tails(self._look())
        yield from self._each(lambda tail: tail.newest(count))

    def lines(self) -> Iterator[Line]:
        """Yield the lines that were completed since the last call, rank by rank."""
        read = self.generation
        found = self._look()
        if read is not None and self.generation != read:
            newest, self.generation = self.generation, read
            yield from self._each(LogTail.rest)
            self._tails, self.generation = {}, newest
        self._tails |= self._new_tails(found)
        yield from self._each(LogTail.lines)

    def rest(self) -> Iterator[Line]:
        """Yield all that is left, unfinished lines too."""
        yield from self.lines()
        yield from self._each(LogTail.rest)

    def _look(self) -> dict[int, Logs]:
        found = logs_by_generation(self._run_directory)
        if not self._is_fixed:
            self.generation = newest_generation(found, self._since_unix_s)
        return found

    def _new_tails(self, found: dict[int, Logs]) -> dict[int, LogTail]:
        logs = {} if self.generation is None else found.get(self.generation, {})
        wanted = [rank for rank in logs if rank not in self._tails and (rank in self._ranks or not self._ranks)]
        return {rank: LogTail(logs[rank], self._offsets.get(logs[rank], 0)) for rank in wanted}

    def _each(self, read: Callable[[LogTail], Iterable[str]]) -> Iterator[Line]:
        if self.generation is not None:
            for rank, tail in self._tails.items():
                yield from (Line(self.generation, rank, text) for text in read(tail))
