"""Ends a run that another process supervises, or used to."""

import signal
import time
from dataclasses import replace
from pathlib import Path

from holdfast_cli.errors import CommandError
from holdfast_cli.run_folder.lock import RunLock
from holdfast_cli.run_folder.record import RunRecord
from holdfast_cli.run_folder.sweep import sweep

_LOOK_S = 0.1


def end_run(record: RunRecord, timeout_s: float) -> str:
    """End the run, wait for its supervisor to have cleared up, and return what was done in words.

    Raises CommandError if it is still there after ``timeout_s``.
    """
    record.check_own()
    supervisor = record.supervisor
    if not supervisor.is_alive():
        return _clear_up(record)
    supervisor.signal(signal.SIGTERM)  # it tells the daemon, and cleans up after the run
    deadline = time.monotonic() + timeout_s
    while supervisor.is_alive():
        if time.monotonic() > deadline:
            raise CommandError(
                f"run {record.run} has not ended after {timeout_s:g} s (pid {supervisor.pid}): "
                "wait longer with --timeout, or call `holdfast stop` once more to stop it without waiting for its ranks"
            )
        time.sleep(_LOOK_S)
    return "stopped"


def _clear_up(record: RunRecord) -> str:
    """End what a supervisor that was killed has left."""
    if record.outcome:
        return f"had already ended: {record.outcome}"
    lock = RunLock(Path(record.directory) / "run.lock", record.run)
    try:
        sweep(record)
        replace(record, outcome="cut short", components={}).save()
    finally:
        lock.release()
    return "its supervisor was gone; what it had left was cleared up"
