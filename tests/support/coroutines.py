"""A runner for ``async def`` tests, and waits for use in them.

A conftest imports the hook ``pytest_pyfunc_call``.
"""

import asyncio
import atexit
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

PATIENCE_S = 60.0
"""Seconds far beyond what anything takes: a test that fails by them waits for something that never comes."""

Value = TypeVar("Value")

_runner = asyncio.Runner()
"""One loop for all tests: grpc.aio loses events if its process had an earlier loop."""
atexit.register(_runner.close)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    _runner.run(pyfuncitem.obj(**arguments))
    return True


async def until(condition: Callable[[], Value | None], what: str) -> Value:
    """Return what ``condition`` returns as soon as that is true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while not (value := condition()):
        assert loop.time() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.01)
    return value


async def end(*tasks: "asyncio.Task[None]") -> None:
    """Cancel tasks until they have ended. Before Python 3.12 wait_for, and so redis, may swallow a cancellation."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.05)


def wait_until(condition: Callable[[], Value | None], what: str) -> Value:
    """Return what ``condition`` returns as soon as that is true. For tests without a loop."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)
    return value
