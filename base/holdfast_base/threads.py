"""Threads by the names that the kernel shows, and threads for calls that may block for long, or forever."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def show_name() -> None:
    """Show the kernel the name that the calling thread has in Python. The kernel keeps 15 bytes of it.

    Threads that this one starts inherit the name, so the threads of its gRPC channel count as the hooks' too. By the
    name the agent can tell their work from the rank's. Without /proc this does nothing.
    """
    with contextlib.suppress(OSError):
        Path("/proc/thread-self/comm").write_text(threading.current_thread().name)


async def in_daemon_thread(call: Callable[[], Result]) -> Result:
    """Run a call in a new daemon thread, which cannot keep this process alive if the call never returns."""
    import asyncio  # here, because hooks import this module in a training process that has no use for it

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: Result | None = None
        failure: BaseException | None = None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - handed over
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the loop is closed: this agent has ended

    threading.Thread(target=run, name="agent-look", daemon=True).start()
    return await future
