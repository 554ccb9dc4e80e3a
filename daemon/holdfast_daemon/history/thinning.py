"""Bounds the size of a history: old steps are replaced by buckets, and old starts are removed.

A step takes about 100 bytes, a bucket about 300. Work is done in parts, because readers wait while a part is committed.
"""

import sqlite3

from holdfast_daemon.history.history_tables import QUANTITIES

STEPS_KEPT = 1_000_000
"""Newest steps of the newest start that keep rows of their own."""
OLD_STEPS_KEPT = 100_000
"""Likewise, of every earlier start."""
STARTS_KEPT = 20
BUCKET_STEPS = 100
"""Steps that a bucket of old steps stands for. It keeps count, mean, lowest and highest value."""
PART_STEPS = 20_000
"""Most steps that are replaced or removed in one transaction."""

_MASK = " | ".join(f"max(nonfinite & {1 << bit})" for bit in range(len(QUANTITIES)))
_VALUES = ", ".join(f"count({name}), avg({name}), min({name}), max({name})" for name in QUANTITIES)
_THIN = (
    f"INSERT OR IGNORE INTO thinned SELECT start, generation, min(step), max(step), max(unix_s), {_MASK}, {_VALUES} "
    f"FROM steps WHERE start = ? AND (generation, step) < (?, ?) GROUP BY generation, step / {BUCKET_STEPS}"
)


def thin(connection: sqlite3.Connection) -> None:
    """Do the next part of the work that is due, if any, in the caller's transaction."""
    starts = connection.execute("SELECT number, kept_steps FROM starts ORDER BY number DESC").fetchall()
    for place, (start, kept) in enumerate(starts):
        limit = 0 if place >= STARTS_KEPT else OLD_STEPS_KEPT if place else STEPS_KEPT
        if place >= STARTS_KEPT and kept <= PART_STEPS:
            _remove(connection, start)
            return
        if kept > limit + PART_STEPS:
            _replace_oldest(connection, start)
            return


def _replace_oldest(connection: sqlite3.Connection, start: int) -> None:
    """Replace about PART_STEPS of the oldest steps of a start. No bucket is left in halves."""
    generation, step = connection.execute(
        "SELECT generation, step FROM steps WHERE start = ? ORDER BY generation, step LIMIT 1 OFFSET ?",
        (start, PART_STEPS),
    ).fetchone()
    before = (start, generation, step // BUCKET_STEPS * BUCKET_STEPS)
    connection.execute(_THIN, before)
    deleted = connection.execute("DELETE FROM steps WHERE start = ? AND (generation, step) < (?, ?)", before).rowcount
    connection.execute("UPDATE starts SET kept_steps = kept_steps - ? WHERE number = ?", (deleted, start))


def _remove(connection: sqlite3.Connection, start: int) -> None:
    for table in ("steps", "thinned", "generations", "checkpoints", "finals", "states", "metrics"):
        connection.execute(f"DELETE FROM {table} WHERE start = ?", (start,))
    connection.execute("DELETE FROM starts WHERE number = ?", (start,))
