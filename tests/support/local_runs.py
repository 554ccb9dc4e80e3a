"""Waits for a run, and things that tests do to a run on this machine and that no command does."""

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

from holdfast_cli.control import ControlError
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.redis_server import answers
from holdfast_cli.run_folder.paths import empty_redis_data
from holdfast_cli.run_folder.sweep import agent_records
from tests.support.coroutines import PATIENCE_S

Found = TypeVar("Found")

FOUND_PATIENCE_S = 240.0


def warm_parent_pid(run: LocalRun) -> int | None:
    """Return the pid of the process that forks the ranks, or None before the agent has one."""
    records = [record for record in agent_records(run.paths.directory) if record.warm_parent_pid]
    return records[0].warm_parent_pid if records else None


def suspend_restart(run: LocalRun, component: str) -> None:
    """Let a component stay down once it dies."""
    run.stack.component(component).suspended = True


def resume_restart(run: LocalRun, component: str) -> None:
    """Let a component be started again."""
    run.stack.component(component).suspended = False


def restart_redis(run: LocalRun, *, empty: bool = False) -> None:
    """SIGKILL the run's own Redis and wait for the next one. ``empty``: the next one has lost all data."""
    suspend_restart(run, "redis")
    run.stack.component("redis").kill()
    if empty:
        empty_redis_data(run.paths)
    resume_restart(run, "redis")
    deadline = time.monotonic() + PATIENCE_S
    while not answers(run.store_url):
        assert time.monotonic() < deadline, "Redis has not come back"
        time.sleep(0.02)


def wait_for(look: Callable[[], Found | None], what: str, patience_s: float = FOUND_PATIENCE_S) -> Found:
    """Return what ``look`` finds, as soon as it finds something. A time without a daemon does no harm."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with contextlib.suppress(ControlError):
            if found := look():
                return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")
