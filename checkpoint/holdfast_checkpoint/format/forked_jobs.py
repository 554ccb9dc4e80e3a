"""Does numbered jobs in processes that are forked for them."""

import ctypes
import json
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_proto.exit_codes import describe_exit

_JOBS_AT_MOST = 256
"""Largest number of jobs: a job is one byte in a pipe, from which each process takes its next one."""
_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 16


class ForkedJobs:
    """Does ``job(0)``, ``job(1)`` and so on, each once, begun in this order. A context manager.

    What a job writes to memory stays in its process, unless the memory is shared. Create it where no other thread
    holds a lock: the children inherit the lock and not the thread that would release it.
    """

    def __init__(self, job: Callable[[int], None], jobs: int, *, processes: int) -> None:
        assert jobs <= _JOBS_AT_MOST
        # The pipe is the queue. Its reads of one byte are atomic, and it ends when it is empty: no lock, and no process
        # that hands out jobs.
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
        """Kill the processes that are left."""
        while self._children:
            child = self._children.pop()
            os.kill(child.pid, signal.SIGKILL)
            child.end()

    def finish(self) -> None:
        """Wait for all jobs.

        Raises the CheckpointUnreadable or CheckpointUnavailable of the failed job with the lowest number, so that the
        message does not depend on chance. Raises CheckpointError if a process died.
        """
        failures: dict[int, CheckpointError] = {}
        while self._children:
            answer = _read(self._children[-1].answer)
            status = self._children.pop().end()
            if status:
                how = describe_exit(os.waitstatus_to_exitcode(status))
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
    """Pipe from the process: its failure as JSON, or nothing if all its jobs are done."""

    def end(self) -> int:
        """Wait until the process ends; return its wait status."""
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
        # The kernel kills the child if its parent dies: nobody would wait for it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _work(job, todo, sink)
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not return into its parent's work
        traceback.print_exc()
    finally:
        os._exit(status)


def _work(job: Callable[[int], None], todo: int, sink: int) -> None:
    """Do jobs until none is left or one has failed. Other processes do the rest."""
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
