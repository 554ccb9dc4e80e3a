"""An event loop whose clock stands still while code runs, and jumps to the next timer when nothing is left to do.

A test on it waits an hour in milliseconds, and a busy machine changes nothing. It may wait with ``asyncio.sleep``,
timeouts and events, but not for a socket: time would jump while an answer is under way. ``looptime`` does the same as a
plugin of pytest-asyncio, which this project does not use.
"""

import asyncio
import functools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from holdfast_daemon.clock import Clock

Parameters = ParamSpec("Parameters")


class _Selector(selectors.DefaultSelector):
    """Moves the clock where the selector of another loop would sleep."""

    now_s = 0.0
    jobs = 0
    """Calls that run on threads. They take no time by this clock, so the loop waits for them."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0.0:
            return super().select(timeout)
        events = super().select(None if self.jobs else 0.0)
        if not events:
            self.now_s += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that never sleeps. Its time begins at 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def run_in_executor(self, *arguments: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        future = super().run_in_executor(*arguments)
        self._virtual.jobs += 1
        future.add_done_callback(self._end_job)
        return future

    def _end_job(self, _: object) -> None:
        self._virtual.jobs -= 1

    async def shutdown_default_executor(self, *arguments: Any) -> None:
        self._virtual.jobs += 1  # Python waits for its threads with a timeout
        await super().shutdown_default_executor(*arguments)


class LoopClock(Clock):
    """Unix time that passes as the time of the running loop does."""

    def __init__(self) -> None:
        self._offset_s = time.time() - asyncio.get_running_loop().time()

    def now(self) -> float:
        return self._offset_s + asyncio.get_running_loop().time()


def on_virtual_time(test: Callable[Parameters, Coroutine[Any, Any, None]]) -> Callable[Parameters, None]:
    """Run an ``async def`` test on a virtual-time loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*arguments, **named))

    return run
