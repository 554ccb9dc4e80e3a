"""Follows the output of a run's ranks from one generation to the next."""

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast_cli.rank_logs.log_files import Logs, logs_by_generation, newest_generation
from holdfast_cli.rank_logs.log_tail import LogTail


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
