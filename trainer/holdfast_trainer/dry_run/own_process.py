"""Runs functions in processes of their own. They are forked from this one, so that nothing is imported again."""

import gc
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence


class ProcessDiedError(Exception):
    """A process ended without a result. The message says how."""


def run_each(functions: Sequence[Callable[[], str]], *, at_once: int) -> Iterator[str | ProcessDiedError]:
    """Yield the result of each of ``functions``, in their order. ``at_once`` of them run at the same time."""
    running: deque[tuple[int, int]] = deque()
    waiting = deque(functions)
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(_start(waiting.popleft()))
        yield _finish(*running.popleft())


def _start(function: Callable[[], str]) -> tuple[int, int]:
    """Return the pid of the new process, and the descriptor from which its result can be read."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writable)
        return pid, readable
    # Garbage of this process may own threads that do not exist after a fork. Freeing it would abort the child, so the
    # garbage collector must not touch it.
    gc.freeze()
    status = 1
    try:
        with open(writable, "w", encoding="utf-8") as output:  # noqa: PTH123 (a descriptor has no path)
            output.write(function())
        status = 0
    except BaseException:  # noqa: BLE001 (the fork must end here, whatever ends it)
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _finish(pid: int, readable: int) -> str | ProcessDiedError:
    with open(readable, encoding="utf-8") as output:
        result = output.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return result
    return ProcessDiedError(f"its process ended with code {code}" if code > 0 else f"signal {-code} ended its process")
