"""Writes batches of rows into the history of one run. Every batch is one transaction."""

import contextlib
import json
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_base.text import arguments_without_secrets
from holdfast_core.model import CoreState
from holdfast_core.reading.rank_means import own_time_sum
from holdfast_daemon.control.status import status_of
from holdfast_daemon.history import history_tables
from holdfast_daemon.history.rows import CheckpointRow, CountedStep, MetricRow, metric_stride
from holdfast_daemon.history.thinning import thin
from holdfast_proto import run_files
from holdfast_proto.message_json import to_json
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

log = logging.getLogger(__name__)

MOST_SET_ASIDE = 3
"""Files of one run that a daemon sets aside. A disk that damages each new file must not fill up with them."""

_STEP = f"INSERT OR IGNORE INTO steps VALUES ({', '.join('?' * (5 + len(history_tables.QUANTITIES)))})"
_GENERATION = (
    "INSERT INTO generations VALUES (?, ?, ?) "
    "ON CONFLICT DO UPDATE SET first_step = min(first_step, excluded.first_step)"
)
_CHECKPOINT = "INSERT OR IGNORE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)"
_METRIC = "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?, ?)"
# What a run was when it ended stays: its nodes leave then, and later statuses know less.
_LAST = (
    "INSERT INTO {table} VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET unix_s = excluded.unix_s, "
    "ended = excluded.ended, {column} = excluded.{column} WHERE NOT {table}.ended OR NOT excluded.ended"
)
_FINAL = _LAST.format(table="finals", column="status")
_STATE = _LAST.format(table="states", column="state")


@dataclass
class StartRows:
    """Rows of one start of a run."""

    steps: list[CountedStep] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    state: CoreState | None = None
    """State from which the newest status is made; None: it has not changed."""
    state_unix_s: float = 0.0
    metrics: list[MetricRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps) + len(self.checkpoints) + len(self.metrics)


class HistoryFile:
    """The file of one run's name. It is opened for each batch, so that a file that was removed is noticed."""

    def __init__(self, directory: Path, run: str) -> None:
        self._path = run_files.history(directory, run)
        self._directory, self._run = directory, run
        self._set_aside = 0

    def write(self, batches: Sequence[tuple[str, StartRows]]) -> None:
        """Write batches with their instances. Raises OSError, sqlite3.Error and, for impossible values, ValueError."""
        try:
            self._write(batches)
        except (sqlite3.DatabaseError, history_tables.ForeignFileError) as error:
            if not _is_damage(error) or self._set_aside >= MOST_SET_ASIDE:
                raise
            self._put_aside(error)
            self._write(batches)

    def _write(self, batches: Sequence[tuple[str, StartRows]]) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with contextlib.closing(history_tables.open_for_writing(self._path)) as connection:
            with _transaction(connection):
                for instance, batch in batches:
                    _write_batch(connection, instance, batch)
            with _transaction(connection):
                thin(connection)

    def _put_aside(self, error: Exception) -> None:
        self._set_aside += 1
        why = f"version-{error.version}" if isinstance(error, history_tables.OtherVersionError) else "damaged"
        other = run_files.set_aside_history(self._directory, self._run, why, time.time_ns())
        self._path.rename(other)
        journal = self._path.with_name(f"{self._path.name}-journal")
        with contextlib.suppress(FileNotFoundError):  # a journal that stays would be played back into the new file
            journal.rename(other.with_name(f"{other.name}-journal"))
        if isinstance(error, history_tables.OtherVersionError):
            log.warning("%s; it is now %s, and a new one begins", error, other.name)
        else:
            log.error("%s is damaged, and is now %s; a new one begins: %s", self._path, other.name, error)


def _is_damage(error: Exception) -> bool:
    if isinstance(error, history_tables.ForeignFileError):
        return True
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # Tables that are missing are an SQLITE_ERROR: the head of the file is right, and the rest is not.
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # the first error is the one that counts
            connection.execute("ROLLBACK")
        raise


def _write_batch(connection: sqlite3.Connection, instance: str, batch: StartRows) -> None:
    start = _start(connection, instance, batch)
    before = connection.total_changes
    connection.executemany(
        _STEP, [(start, one.generation, one.step, one.unix_s, one.nonfinite, *one.values) for one in batch.steps]
    )
    added = connection.total_changes - before
    connection.execute("UPDATE starts SET kept_steps = kept_steps + ? WHERE number = ?", (added, start))
    first: dict[int, int] = {}
    for one in batch.steps:
        first[one.generation] = min(one.step, first.get(one.generation, one.step))
    connection.executemany(_GENERATION, [(start, generation, step) for generation, step in first.items()])
    connection.executemany(
        _CHECKPOINT,
        [
            (start, one.generation, one.step, one.unix_s, one.raw_bytes, one.stored_bytes, one.duration_s)
            for one in batch.checkpoints
        ],
    )
    for row in batch.metrics:
        first_step = row.step - row.step % metric_stride(row.step)
        connection.execute(_METRIC, (start, row.name, row.generation, first_step, row.unix_s, row.value))
    if batch.state is not None:
        try:
            status = json.dumps(status_fields(batch.state, batch.state_unix_s), allow_nan=False)
            packed = _packed(batch.state)
        except Exception:
            log.exception("the status in the history of run %s is not renewed", batch.state.spec.run)
            return  # the rows above are kept all the same
        when = (start, batch.state_unix_s, batch.state.record.phase in ENDED)
        connection.execute(_FINAL, (*when, status))
        connection.execute(_STATE, (*when, packed))


def _packed(state: CoreState) -> bytes:
    kept = store.KeptState(spec=spec_without_secrets(state.spec), record=state.record, nodes=dict(state.nodes))
    return zlib.compress(kept.SerializeToString(), 1)


def _start(connection: sqlite3.Connection, instance: str, batch: StartRows) -> int:
    """Return the number of the start, and write its settings if they are known."""
    if batch.state is not None:
        created_unix_s = batch.state.spec.created_unix_s
        spec = json.dumps(spec_fields(batch.state), allow_nan=False)
    else:
        rows: Sequence[CountedStep | CheckpointRow | MetricRow] = (*batch.steps, *batch.checkpoints, *batch.metrics)
        created_unix_s = min(row.unix_s for row in rows)
        spec = ""
    connection.execute(
        "INSERT INTO starts (instance, created_unix_s, spec) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
        "created_unix_s = excluded.created_unix_s, spec = excluded.spec WHERE excluded.spec <> ''",
        (instance, created_unix_s, spec),
    )
    found = connection.execute("SELECT number FROM starts WHERE instance = ?", (instance,)).fetchone()
    return int(found[0])


SLOWEST_RANKS = 8
"""Number of ranks that a history names: those that need most time of their own for a step."""


def spec_fields(state: CoreState) -> dict[str, Any]:
    """Return the settings of the run without secrets of its command, and the number of its ranks."""
    return {**to_json(spec_without_secrets(state.spec)), "world_size": state.world_size}


def spec_without_secrets(spec: store.RunSpec) -> store.RunSpec:
    """Return what a run is, as files may keep it: its command without secrets. Only Redis has them, for the agents."""
    kept = store.RunSpec()
    kept.CopyFrom(spec)
    kept.command[:] = arguments_without_secrets(spec.command)
    return kept


def status_fields(state: CoreState, now: float) -> dict[str, Any]:
    """Return the fields of the run's RunStatus without its ranks, and ``slowest_ranks`` and ``nodes``.

    ``now``: Unix time.
    """
    status = status_of(state, now, store_up=True)
    status.ClearField("ranks")  # before they are turned into JSON, because there may be thousands
    status.ClearField("newest_incident")
    status.ClearField("urgent_incident")
    fields = to_json(status)
    del fields["ranks"]
    return {**fields, "slowest_ranks": _slowest(state), "nodes": list(state.record.nodes)}


def _slowest(state: CoreState) -> list[dict[str, Any]]:
    found = []
    for name, node in state.nodes.items():
        for rank in node.ranks:
            own = own_time_sum(rank)
            if own.parts and node.generation == state.record.generation:
                found.append(
                    {"rank": rank.rank, "node": name, "own_step_s": own.total / own.parts, "steps": rank.steps_done}
                )
    return sorted(found, key=lambda one: -float(str(one["own_step_s"])))[:SLOWEST_RANKS]
