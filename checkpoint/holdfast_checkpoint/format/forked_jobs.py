"""Has numbered jobs done by processes that are forked for them."""

import ctypes
import json
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from holdfast_checkpoint.errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable

_JOBS_AT_MOST = 256
"""A job is one byte in a pipe."""
_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 16


class ForkedJobs:
    """Does ``job(0)``, ``job(1)`` and so on, each once, handed out in this order. A context manager.

    What jobs write stays in their process, unless it is shared memory. Fork where no other thread holds locks.
    """

    def __init__(self, job: Callable[[int], None], jobs: int, *, processes: int) -> None:
        assert jobs <= _JOBS_AT_MOST
        todo, source = os.pipe()
        os.write(source, bytes(range(jobs)))
        os.close(source)
        self._children: list[_Child] = []
        try:
            for _ in range(processes):
                self._children.append(_fork(job, todo))
        finally:
            os.close(todo)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes at once."""
        while self._children:
            child = self._children.pop()
            os.kill(child.pid, signal.SIGKILL)
            child.end()

    def finish(self) -> None:
        """Wait for all jobs.

        Raises CheckpointUnreadable or CheckpointUnavailable as the first job, by its number, that has raised one;
        CheckpointError if a process died.
        """
        failures: dict[int, CheckpointError] = {}
        while self._children:
            answer = _read(self._children[-1].answer)
            status = self._children.pop().end()
            if status:
                code = os.waitstatus_to_exitcode(status)
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                raise CheckpointError(
                    f"a process that read the checkpoint {how}: see the agent's log; if the kernel killed it for lack"
                    " of memory, leave the node more free"
                )
            if answer:
                failure = json.loads(answer)
                kind = CheckpointUnavailable if failure["is_unavailable"] else CheckpointUnreadable
                failures[failure["job"]] = kind(failure["message"])
        if failures:
            raise failures[min(failures)]


@dataclass(frozen=True)
class _Child:
    pid: int
    answer: int
    """Pipe with its failure, JSON; empty at its end if all its jobs are done."""

    def end(self) -> int:
        """Wait for its end; return its wait status."""
        os.close(self.answer)
        return os.waitpid(self.pid, 0)[1]


def _fork(job: Callable[[int], None], todo: int) -> _Child:
    answer, sink = os.pipe()
    pid = os.fork()
    if pid:
        os.close(sink)
        return _Child(pid, answer)
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _work(job, todo, sink)
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not return into its parent's work
        traceback.print_exc()
    finally:
        os._exit(status)


def _work(job: Callable[[int], None], todo: int, sink: int) -> None:
    """Do jobs until none is left, or one has failed: those before it are somebody's already."""
    while number := os.read(todo, 1):
        try:
            job(number[0])
        except (CheckpointUnreadable, CheckpointUnavailable) as error:
            is_unavailable = isinstance(error, CheckpointUnavailable)
            failure = {"job": number[0], "message": str(error), "is_unavailable": is_unavailable}
            os.write(sink, json.dumps(failure).encode())
            return


def _read(pipe: int) -> bytes:
    data = b""
    while part := os.read(pipe, _READ_BYTES):
        data += part
    return data
