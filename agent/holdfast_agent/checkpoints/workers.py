"""Runs jobs in worker processes. A thread of the agent drives each one and waits for it."""

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from holdfast_checkpoint.checkpoint_errors import (
    CheckpointCommitted,
    CheckpointError,
    CheckpointUnavailable,
    CheckpointUnreadable,
    write_errors,
)
from holdfast_checkpoint.store.leftovers import remove_leftovers
from holdfast_proto.exit_codes import describe_exit
from holdfast_proto.snapshot import SnapshotError

log = logging.getLogger(__name__)

_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (CheckpointError, CheckpointUnreadable, CheckpointUnavailable, CheckpointCommitted, SnapshotError)
}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_LAST_ATTEMPT = 2
_LIMITS = "raise the agent's limits (ulimit -n, ulimit -u) or free memory"


class CheckpointWorkers:
    """At most ``limit`` worker processes, started when there is work for them.

    ``background``: the workers yield the CPU to the ranks (niceness 10).
    """

    def __init__(self, limit: int, *, background: bool) -> None:
        self._background = background
        self._threads = ThreadPoolExecutor(limit, "checkpoint-worker")
        self._of_thread = threading.local()
        self._workers: dict[int, _Worker] = {}
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Pids of the workers that were started and are not known to be dead."""
        return list(self._workers)

    async def run(self, task: str, *, directory: Path, **arguments: Any) -> None:
        """Run a task of ``worker.py`` on a checkpoint's ``directory``.

        A worker that dies is replaced, and the job is tried once more. Raises the error of the task, or
        CheckpointError if the second worker dies too, or if none can be started.
        """
        job = {"task": task, "arguments": {"directory": str(directory), **arguments}}
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._run, job, directory)
        except RuntimeError as error:
            # The pool keeps the job for a later thread. By then the slot may hold another snapshot.
            job.clear()
            raise CheckpointError(f"no thread for a checkpoint worker ({error}): {_LIMITS}") from error

    def close(self) -> None:
        """Kill the workers, whatever they do."""
        self._closed = True
        for worker in list(self._workers.values()):
            worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers.values():
            worker.end()

    def _run(self, job: dict[str, Any], directory: Path) -> None:
        if not job:
            return
        for attempt in range(1, _LAST_ATTEMPT + 1):
            worker = self._worker()
            try:
                answer = worker.ask(job)
                break
            except _WorkerDied as death:
                del self._workers[worker.pid]
                self._of_thread.worker = None
                _clean(directory)
                if self._closed or attempt == _LAST_ATTEMPT:
                    raise CheckpointError(
                        f"checkpoint worker {death} while it had to {job['task']} in {directory}: see the agent's log;"
                        " if the kernel killed it for lack of memory, leave the node more free"
                    ) from death
                log.warning("checkpoint worker %s: its job is tried again", death)
        if answer:
            raise _ERRORS[answer["error"]](answer["message"])

    def _worker(self) -> "_Worker":
        """Return this thread's own worker: the kernel kills a worker with the thread that has started it."""
        worker = cast("_Worker | None", getattr(self._of_thread, "worker", None))
        if worker is None:
            worker = self._of_thread.worker = _Worker(background=self._background)
            self._workers[worker.pid] = worker
        return worker


def reason_of_failure(error: Exception) -> str:
    """Return in words for the user why a checkpoint could not be written."""
    if isinstance(error, (CheckpointError, SnapshotError)):
        return str(error)
    return f"it could not be written ({error!r}): {_LIMITS}"


class _WorkerDied(Exception):  # noqa: N818 - an event
    """The message completes "checkpoint worker ..."."""


class _Worker:
    def __init__(self, *, background: bool) -> None:
        command = [sys.executable, "-m", "holdfast_agent.checkpoints.worker", *(["--background"] if background else [])]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | _ONE_THREAD
            )
        except OSError as error:
            raise CheckpointError(f"cannot start a checkpoint worker: {error.strerror}: {_LIMITS}") from error
        self.pid = self._process.pid

    def ask(self, job: dict[str, Any]) -> dict[str, str]:
        """Return the answer to a job. Raises _WorkerDied."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if answer.endswith(b"\n"):
            return cast(dict[str, str], json.loads(answer))
        raise _WorkerDied(self.end())

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def end(self) -> str:
        """Wait for the end of a dying process; return how it ended."""
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # the pipe still held input that the worker has not read
                pipe.close()
        return describe_exit(status)


def _clean(directory: Path) -> None:
    """Remove a dead worker's partial files. Nothing reads them, but they use disk space."""
    if directory.is_dir():
        with write_errors(directory):
            remove_leftovers(directory)
