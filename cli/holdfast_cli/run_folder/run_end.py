"""Ends a run that another process supervises or supervised."""

import signal
import time
from dataclasses import replace
from pathlib import Path

from holdfast_cli.errors import CommandError
from holdfast_cli.run_folder.ended import CUT_SHORT
from holdfast_cli.run_folder.lock import RunLock
from holdfast_cli.run_folder.record import RunRecord
from holdfast_cli.run_folder.sweep import sweep

_LOOK_S = 0.1


def end_run(record: RunRecord, timeout_s: float) -> str:
    """End the run, wait until its supervisor has cleaned up, and return in words what was done.

    Raises CommandError if it is still there after ``timeout_s``.
    """
    record.check_own()
    supervisor = record.supervisor
    if not supervisor.is_alive():
        return _clear_up(record)
    supervisor.signal(signal.SIGTERM)  # the supervisor stops the run and cleans up
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
    """Clean up after a supervisor that was killed."""
    if record.outcome:
        return f"had already ended: {record.outcome}"
    lock = RunLock(Path(record.directory), record.run)
    try:
        sweep(record)
        replace(record, outcome=CUT_SHORT, components={}).save()
    finally:
        lock.release()
    return "its supervisor was gone; what it had left was cleared up"
