"""The tables of a history, and how its file is opened.

SQLite, because a history must survive SIGKILL of its writer, serve many readers at a time, and need no server. It is in
Python's standard library, and people can read it with tools of their own.

The journal is SQLite's rollback journal, and not its write-ahead log: that log needs memory which all readers share, so
it does not work on NFS, and a reader must be able to write next to the file. Here a writer holds readers up only while
it commits, once a second.
"""

import sqlite3
from pathlib import Path
from urllib.parse import quote

QUANTITIES = (
    "loss",
    "validation_loss",
    "grad_norm",
    "learning_rate",
    "update_norm",
    "loss_scale",
    "tokens_per_s",
    "step_s",
    "mfu",
    "data_s",
)
"""Numbers of a step, by the names of their columns. ``step_s`` and ``data_s`` are seconds, ``mfu`` is a ratio."""

MEMORY = "memory_bytes"
"""Name of a metric: the most bytes that the tensors of one rank use, or its process on a CPU."""
LOGGED = "logged:"
"""Before the name of a metric that the script logs under a name of its own."""

APPLICATION_ID = 0x48464831
"""Number in the head of the file that marks a history of Holdfast."""
VERSION = 1
"""Number of this set of tables, in the head of the file."""
MOST_VALUE_BYTES = 256 << 20
"""Most bytes of one value. A damaged length may claim a gigabyte."""
WAIT_S = 5.0
"""Longest time that a reader or writer waits for the lock of another one."""

_VALUES = ", ".join(f"{name} REAL" for name in QUANTITIES)
_THINNED = ", ".join(f"{name}_count INTEGER, {name} REAL, {name}_low REAL, {name}_high REAL" for name in QUANTITIES)

# Tables that came after the first files of this version. A writer adds them to a file that lacks them, and readers do
# without.
# `states` has the run as its daemon knew it last: a KeptState, compressed by zlib. `metrics` has numbers by name: a row
# stands for one step of the first ones, and for more of the later ones (see metric_stride). NaN and infinity are NULL.
ADDED = """
CREATE TABLE IF NOT EXISTS states (
  start INTEGER PRIMARY KEY, unix_s REAL NOT NULL, ended INTEGER NOT NULL, state BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS metrics (
  start INTEGER NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL, unix_s REAL NOT NULL,
  value REAL, PRIMARY KEY (start, name, generation, step)
) WITHOUT ROWID;
"""

# Steps are ordered by generation and step. They come in this order, so that each is appended, and are read in it.
# `nonfinite` has a bit for each quantity that was NaN or infinite, by its place in QUANTITIES. Its value is NULL then,
# because SQLite has no NaN. Two daemons may create the tables at the same time.
_TABLES = f"""
CREATE TABLE IF NOT EXISTS starts (
  number INTEGER PRIMARY KEY, instance TEXT NOT NULL UNIQUE, created_unix_s REAL NOT NULL, spec TEXT NOT NULL,
  kept_steps INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS generations (
  start INTEGER NOT NULL, generation INTEGER NOT NULL, first_step INTEGER NOT NULL,
  PRIMARY KEY (start, generation)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
  start INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL, unix_s REAL NOT NULL,
  nonfinite INTEGER NOT NULL, {_VALUES},
  PRIMARY KEY (start, generation, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS thinned (
  start INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL, last_step INTEGER NOT NULL,
  unix_s REAL NOT NULL, nonfinite INTEGER NOT NULL, {_THINNED},
  PRIMARY KEY (start, generation, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checkpoints (
  start INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL, unix_s REAL NOT NULL,
  raw_bytes INTEGER NOT NULL, stored_bytes INTEGER NOT NULL, duration_s REAL NOT NULL,
  PRIMARY KEY (start, generation, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS finals (
  start INTEGER PRIMARY KEY, unix_s REAL NOT NULL, ended INTEGER NOT NULL, status TEXT NOT NULL
);
{ADDED}
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""


class ForeignFileError(Exception):
    """A file that is no history, or the history of another version of Holdfast."""


class OtherVersionError(ForeignFileError):
    """The history of another version of Holdfast. It is not damaged."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(
            f"{path} is a history of version {version}, and this Holdfast reads version {VERSION}: "
            "read it with the version of Holdfast that wrote it"
        )
        self.version = version


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Return a connection to an existing file; create the tables if it is empty. The caller manages transactions.

    Raises sqlite3.Error and ForeignFileError.
    """
    connection = sqlite3.connect(_uri(path, "rw"), uri=True, timeout=WAIT_S, isolation_level=None)
    try:
        # A loss of power costs at most the newest batch. Only the thread that writes waits for the disk.
        connection.execute("PRAGMA synchronous = FULL")
        if not connection.execute("PRAGMA schema_version").fetchone()[0]:
            connection.executescript(f"PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE; {_TABLES} COMMIT;")
        check(connection, path)
        connection.executescript(ADDED)
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write. Raises sqlite3.Error and ForeignFileError."""
    try:
        return _opened(path, "ro")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode not in (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY):
            raise
        # The writer was killed in the middle of a commit. Whoever reads next has to undo that part, and so to write.
        return _opened(path, "rw")


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(_uri(path, mode), uri=True, timeout=WAIT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = 1")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
        check(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise ForeignFileError unless the file has these tables."""
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != APPLICATION_ID:
        raise ForeignFileError(f"{path} is not a history of Holdfast")
    if version != VERSION:
        raise OtherVersionError(path, version)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.absolute()))}?mode={mode}"
