"""The live pages: a feed for the list of runs, one for each run, and one for each page of its ranks in each colour."""

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast_daemon.console.pages.run_frame import run_frame, short_frame, stale_text
from holdfast_daemon.console.pages.step_rows import StepRows
from holdfast_daemon.console.ranks.rank_cells import RankCells
from holdfast_daemon.console.ranks.rank_table import RankReader
from holdfast_daemon.console.serving.browser_json import difference
from holdfast_daemon.console.serving.streams import EndedError, Event, Feed
from holdfast_daemon.console.watched import WatchedDaemon, WatchedRun
from holdfast_proto import run_files

log = logging.getLogger(__name__)

RANKS_PAUSE_S = 1.0
MOST_PAGES = 32
"""Streams that are open at a time, over all pages."""
_MOST_FAREWELLS = 100
"""Most runs whose last state is sent at the end."""


class LiveFeeds:
    """All feeds of one console. Only its thread uses them."""

    def __init__(self, watched: WatchedDaemon) -> None:
        self._watched = watched
        self._readers: dict[str, RankReader] = {}
        self._runs_shown: dict[str, Any] = {}
        self._runs = Feed(self._first_runs, self._changed_runs, RANKS_PAUSE_S, self._urgent_runs)
        self._of_run: dict[str, _RunFeed] = {}
        self._of_ranks: dict[tuple[str, str, str, int], _RanksFeed] = {}

    @property
    def pages(self) -> int:
        """Number of open streams."""
        return sum(feed.pages for feed in self._feeds())

    def runs(self) -> Feed:
        """Return the feed of the list of runs."""
        return self._runs

    def run(self, name: str) -> Feed:
        """Return the feed of a run."""
        self._forget_unused()
        if name not in self._of_run:
            self._of_run[name] = _RunFeed(self._watched, name, self.reader(name))
        return self._of_run[name].feed

    def ranks(self, name: str, colour: str, search: str, skip: int) -> Feed:
        """Return the feed of a page of a run's ranks. Raises ValueError if there is no such colour or search."""
        self._forget_unused()
        key = (name, colour, search, skip)
        if key not in self._of_ranks:
            reader = self.reader(name)
            cells = RankCells(reader, colour, search, skip)
            self._of_ranks[key] = _RanksFeed(self._watched, name, reader, cells)
        return self._of_ranks[key].feed

    def reader(self, name: str) -> RankReader:
        """Return the reader of a run's ranks, which all its pages share."""
        if name not in self._readers:
            self._readers = {run: reader for run, reader in self._readers.items() if run in self._watched.runs}
            self._readers[name] = RankReader()
        return self._readers[name]

    def list_of_runs(self) -> dict[str, Any]:
        """Return the rows of all runs."""
        now = self._watched.clock.now()
        runs = dict(self._watched.runs)
        return {"runs": [short_frame(runs[name], self.reader(name), now) for name in sorted(runs)]}

    def frame(self, run: WatchedRun) -> dict[str, Any]:
        """Return the frame of a run."""
        return run_frame(run, self.reader(run.run_name), self._watched.clock.now())

    def close(self) -> None:
        """End all streams, because the daemon ends. Each page gets the last state of the runs."""
        try:
            rows = self.list_of_runs()["runs"][:_MOST_FAREWELLS]
        except Exception as error:  # noqa: BLE001 (the streams must end)
            log.warning("pages are not told how the runs were: %r", error)
            rows = []
        names = ("run", "state", "state_text")
        farewell = ("farewell", {"runs": [{name: row[name] for name in names} for row in rows]})
        for feed in self._feeds():
            feed.end(farewell)

    def _feeds(self) -> list[Feed]:
        of_runs = [one.feed for one in self._of_run.values()]
        return [self._runs, *of_runs, *(one.feed for one in self._of_ranks.values())]

    def _forget_unused(self) -> None:
        self._of_run = {name: one for name, one in self._of_run.items() if not one.feed.is_unused}
        self._of_ranks = {key: one for key, one in self._of_ranks.items() if not one.feed.is_unused}

    def _first_runs(self, alone: bool) -> Sequence[Event]:
        if alone:
            self._runs_shown = self.list_of_runs()
        return [("runs", self._runs_shown)]

    def _changed_runs(self) -> Iterable[Event]:
        runs = self.list_of_runs()
        if runs != self._runs_shown:
            self._runs_shown = runs
            yield "runs", runs

    def _urgent_runs(self) -> object:
        return [_urgent(run) for run in list(self._watched.runs.values())]


class _RunFeed:
    """One run: frame, changes, and the rows of its steps."""

    def __init__(self, watched: WatchedDaemon, name: str, reader: RankReader) -> None:
        self._watched = watched
        self._name = name
        self._reader = reader
        self._shown: dict[str, Any] = {}
        self._rows = StepRows(run_files.history(watched.options.directory, name))
        self.feed = Feed(self._first, self._changes, urgent=lambda: _urgent(watched.runs.get(name)))

    def _first(self, alone: bool) -> Sequence[Event]:
        if alone or not self._shown:
            run = self._run()
            self._shown = run_frame(run, self._reader, self._watched.clock.now())
            self._rows.begin(run.state)
        return [("frame", self._shown)]

    def _changes(self) -> Iterable[Event]:
        run = self._run()
        frame = run_frame(run, self._reader, self._watched.clock.now())
        change = difference(self._shown, frame)
        self._shown = frame
        if change:
            yield "change", change
        for steps in self._rows.new(run.state, self._watched.clock.now()):
            yield "steps", steps

    def _run(self) -> WatchedRun:
        return _known(self._watched, self._name)


class _RanksFeed:
    """One page of the ranks of one run, in one colour."""

    def __init__(self, watched: WatchedDaemon, name: str, reader: RankReader, cells: RankCells) -> None:
        self._watched = watched
        self._name = name
        self._reader = reader
        self._cells = cells
        self._stale = ""
        self.feed = Feed(self._first, self._changes, RANKS_PAUSE_S)
        self._begun_s = 0.0

    def _first(self, alone: bool) -> Sequence[Event]:
        run = _known(self._watched, self._name)
        state = run.state
        if state is None:
            return []
        if alone or not self._begun_s:
            self._begun_s = time.monotonic()
            frame = self._cells.frame(state)
            self._stale = stale_text(run, self._reader.table(state))
        else:
            frame = self._cells.last_frame(state)
        return [("frame", {**frame, "stale": self._stale})]

    def _changes(self) -> Iterable[Event]:
        run = _known(self._watched, self._name)
        state = run.state
        if state is None:
            return
        name, contents = self._cells.change(state) or ("change", {})
        stale = stale_text(run, self._reader.table(state))
        if name == "frame" or stale != self._stale:
            contents = {**contents, "stale": stale}
            self._stale = stale
        if contents:
            yield name, contents


def _urgent(run: WatchedRun | None) -> object:
    """Return what a page must show at once, however long its pause is: incidents, and the phase of a run."""
    if run is None or run.state is None:
        return None
    record = run.state.record
    return record.phase, record.incident_count, record.open_incident, record.standstill_incident


def _known(watched: WatchedDaemon, name: str) -> WatchedRun:
    """Return a run. Raises EndedError, with the last event, if it is forgotten."""
    run = dict(watched.runs).get(name)
    if run is None:
        raise EndedError(("gone", {"run": name}))
    return run
