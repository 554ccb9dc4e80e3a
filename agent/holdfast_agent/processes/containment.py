"""Contains an error where it occurs: the agent, its other jobs and its ranks continue.

Training must not end because of the tool that watches it. An unexpected exception in a job is logged once with its
traceback and counted, and the job begins again. Data from outside that makes no sense is refused and counted, and
logged once.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

JOBS = (
    "events",
    "commands",
    "tick",
    "checkpoints",
    "replicas",
    "process_trees",
    "rank_logs",
    "stalls",
    "warm_parent",
    "rank_messages",
    "evidence",
    "rank_exits",
    "devices",
    "heartbeat",
    "end",
)
SOURCES = ("commands", "rank_messages", "recorders", "warm_parent", "files", "metrics", "devices")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
STEADY_S = 30.0
"""Time without an error after which the pauses of a job start from the first one again."""

_KNOWN_LIMIT = 1000
"""Number of different errors that are logged; a fault that varies its message must not fill the log."""


class Errors:
    """Counts, for /metrics, the agent's unexpected errors and the input that it refused."""

    def __init__(self) -> None:
        self.unexpected = dict.fromkeys(JOBS, 0)
        """Job -> number of exceptions that its code did not expect."""
        self.refused = dict.fromkeys(SOURCES, 0)
        """Source -> number of messages, or parts of them, that made no sense."""
        self._known: set[tuple[str, ...]] = set()

    def note(self, job: str, error: BaseException) -> None:
        """Count an unexpected exception; log it with its traceback if it is the first of its kind at that line."""
        self.unexpected[job] += 1
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        line = "" if place is None else f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
        if self._is_new(job, type(error).__name__, line):
            log.error("unexpected error in job %s, which continues: %r", job, error, exc_info=error)

    def refuse(self, source: str, reason: str) -> bool:
        """Count input that made no sense; log it, and return True, if it is the first with this reason."""
        self.refused[source] += 1
        is_new = self._is_new(source, reason)
        if is_new:
            log.warning("refused from %s: %s", source.replace("_", " "), reason)
        return is_new

    @contextmanager
    def contained(self, job: str) -> Iterator[None]:
        """Suppress and note any unexpected exception of the block."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  no error of the block may end its caller
            self.note(job, error)

    def _is_new(self, *key: str) -> bool:
        if key in self._known or len(self._known) >= _KNOWN_LIMIT:
            return False
        self._known.add(key)
        return True


class BackgroundJobs:
    """Runs coroutines of one job in the background. An unexpected exception in one is noted, and ends only that one."""

    def __init__(self, errors: Errors, job: str) -> None:
        self._errors = errors
        self._job = job
        # The event loop holds only weak references to tasks: without these, a running one could be collected.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Coroutines that have not ended."""
        return len(self._tasks)

    def begin(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Run ``work`` without waiting for it. Returns the task, which never raises."""

        async def contained() -> None:
            with self._errors.contained(self._job):
                await work

        task = asyncio.get_running_loop().create_task(contained())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def keep_going(
    errors: Errors, job: str, work: Callable[[], Awaitable[None]], *, longest_pause_s: float = LONGEST_PAUSE_S
) -> None:
    """Run a job until it returns. After an unexpected exception, run it again, each time after a longer pause."""
    pause_s = 0.0
    while True:
        began_s = time.monotonic()
        try:
            await work()
            return
        except Exception as error:  # noqa: BLE001  one job's error must not end the agent
            errors.note(job, error)
        is_steady = time.monotonic() - began_s >= STEADY_S
        pause_s = FIRST_PAUSE_S if is_steady or not pause_s else min(2 * pause_s, longest_pause_s)
        await asyncio.sleep(pause_s)
