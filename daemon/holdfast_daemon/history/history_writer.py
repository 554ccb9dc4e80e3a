"""Hands rows from the ticks to a thread that writes them. No tick ever waits for a disk."""

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from holdfast_core.model import CoreState, Logged, ranks_of
from holdfast_daemon.history.history_file import HistoryFile, StartRows
from holdfast_daemon.history.history_tables import LOGGED, MEMORY
from holdfast_daemon.history.rows import MetricRow, checkpoint_row, counted_step
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

log = logging.getLogger(__name__)

MOST_WAITING = 20_000
"""Most rows of one run that wait for the disk. Further ones are dropped and counted."""
EVERY_S = 1.0
"""Seconds between two batches."""
RETRY_S = 10.0
"""Seconds after a batch that could not be written until it is tried again."""
STATUS_EVERY_S = 30.0
"""Seconds between two statuses of a run of which nothing else changes."""
MEMORY_EVERY_S = 5.0
"""Seconds between two rows of the memory of the ranks."""
CLOSE_S = 3.0
"""Longest time in seconds that the end of the daemon waits for the last batch."""


class HistoryQueue:
    """Rows of one run that wait to be written. What ticks call takes microseconds, and never raises."""

    def __init__(self, run: str, file: HistoryFile, wake: Callable[[], None]) -> None:
        self.rows_total = 0
        """Steps, checkpoints and values of metrics that were handed over."""
        self.dropped_total = 0
        """Those of them that were given up: too many waited, or the file cannot hold them."""
        self.writes_total = 0
        """Times that a batch was written, or could not be."""
        self.write_failures_total = 0
        self._run = run
        self._file = file
        self._wake = wake
        self._lock = threading.Lock()
        self._batches: dict[str, StartRows] = {}
        """Instance -> its rows that wait."""
        self._not_before_s = 0.0
        self._seen: tuple[object, ...] = ()
        self._seen_unix_s = 0.0
        self._logged: Mapping[str, Logged] = {}
        self._memory_unix_s = 0.0

    def add_step(self, instance: str, summary: store.StepSummary) -> None:
        """Take in the numbers of a step that was counted."""
        row = counted_step(summary, time.time())
        with self._lock:
            if self._has_room():
                self._batch(instance).steps.append(row)
        self._wake()

    def add_checkpoint(self, instance: str, event: store.Event) -> None:
        """Take in a committed checkpoint from the event that reports it."""
        row = checkpoint_row(event)
        with self._lock:
            if self._has_room():
                self._batch(instance).checkpoints.append(row)
        self._wake()

    def see_state(self, state: CoreState, now: float) -> None:
        """Have new values of metrics kept, and the status if phase, generation or incidents have changed, or with time.

        The thread makes the status from ``state``, which nobody changes. ``now``: Unix time.
        """
        self._add_metrics(state, now)
        record = state.record
        seen = (state.spec.instance, record.phase, record.generation, record.incident_count, len(state.incidents))
        if seen == self._seen and (record.phase in ENDED or now - self._seen_unix_s < STATUS_EVERY_S):
            return
        self._seen, self._seen_unix_s = seen, now
        with self._lock:
            batch = self._batch(state.spec.instance)
            batch.state, batch.state_unix_s = state, now
        self._wake()

    def _add_metrics(self, state: CoreState, now: float) -> None:
        rows = [*self._newly_logged(state, now), *self._memory(state, now)]
        if not rows:
            return
        with self._lock:
            for row in rows:
                if self._has_room(share=2):  # while a disk is away, they must not take the room of the steps
                    self._batch(state.spec.instance).metrics.append(row)
        self._wake()

    def _newly_logged(self, state: CoreState, now: float) -> Iterator[MetricRow]:
        newest, before = state.telemetry.logged, self._logged
        if newest is before:
            return
        self._logged = newest
        for name, number in newest.items():
            if number != before.get(name) and number.step >= 0:
                value = number.value if math.isfinite(number.value) else None
                yield MetricRow(LOGGED + name, number.generation, number.step, now, value)

    def _memory(self, state: CoreState, now: float) -> Iterator[MetricRow]:
        if now - self._memory_unix_s < MEMORY_EVERY_S or state.record.phase != store.RUN_PHASE_RUNNING:
            return
        self._memory_unix_s = now
        generation = state.record.generation
        ranks = ranks_of(state.members, generation).values()
        used = max((rank.memory.allocated_bytes for rank in ranks), default=0)
        step = max((rank.progress.step for rank in ranks), default=-1)
        if used and step >= 0:
            yield MetricRow(MEMORY, generation, step, now, used)

    def write(self, *, is_last: bool = False) -> None:
        """Write what waits. Never raises. ``is_last``: also if the last batch failed a moment ago."""
        if not is_last and time.monotonic() < self._not_before_s:
            return
        with self._lock:
            taken, self._batches = self._batches, {}
        if not taken:
            return
        self.writes_total += 1
        try:
            self._file.write(list(taken.items()))
        except Exception as error:  # noqa: BLE001 (whatever it is: the run is led without a history)
            may_pass = isinstance(error, OSError | sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
            self._failed(error, may_pass=may_pass)
            with self._lock:
                if may_pass:
                    self._not_before_s = time.monotonic() + RETRY_S
                    self._put_back(taken)
                else:  # rows that no file can hold must not keep the next ones from it
                    self.dropped_total += sum(map(len, taken.values()))

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._batches

    def _has_room(self, *, share: int = 1) -> bool:
        """Return whether a row may wait: those that may only use a part of the room give way first."""
        self.rows_total += 1
        has_room = sum(map(len, self._batches.values())) < MOST_WAITING // share
        self.dropped_total += not has_room
        return has_room

    def _batch(self, instance: str) -> StartRows:
        return self._batches.setdefault(instance, StartRows())

    def _put_back(self, taken: dict[str, StartRows]) -> None:
        """Put rows back in front of those that came since."""
        for instance, older in taken.items():
            newer = self._batches.get(instance, StartRows())
            older.steps += newer.steps
            older.checkpoints += newer.checkpoints
            older.metrics += newer.metrics
            if newer.state is not None:
                older.state, older.state_unix_s = newer.state, newer.state_unix_s
            self._batches[instance] = older

    def _failed(self, error: Exception, *, may_pass: bool) -> None:
        self.write_failures_total += 1
        if self.write_failures_total == 1:
            next_step = f"its rows are tried again every {RETRY_S:g} s" if may_pass else "its rows are dropped"
            log.error("run %s: a batch of its history cannot be written, and %s: %s", self._run, next_step, error)


class HistoryWriter:
    """The thread of a daemon that writes the histories of all runs that it leads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._queues: dict[str, HistoryQueue] = {}
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def queue(self, run: str) -> HistoryQueue:
        """Return the queue of a run. It stays the same, so that its counters never fall."""
        if run not in self._queues:
            self._queues[run] = HistoryQueue(run, HistoryFile(self._directory, run), self.wake)
        return self._queues[run]

    def wake(self) -> None:
        """Note that rows wait. The first call starts the thread: a standby needs none."""
        if self._thread is None:
            thread = threading.Thread(target=self._write_forever, name="holdfast-history", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there are too many threads: the next row tries again
                return
            self._thread = thread
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """Write what waits, and end the thread. A disk that does not answer is left alone after some seconds."""
        self._closing.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _write_forever(self) -> None:
        is_last = False
        while not is_last:
            self._woken.wait()
            self._closing.wait(EVERY_S)  # more rows come meanwhile: they are one batch
            self._woken.clear()
            is_last = self._closing.is_set()
            for queue in list(self._queues.values()):
                queue.write(is_last=is_last)
            if not all(queue.is_empty for queue in list(self._queues.values())):
                self._woken.set()
