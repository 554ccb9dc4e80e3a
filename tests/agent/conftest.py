"""Fixtures for the tests of the agent."""

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coroutines import pytest_pyfunc_call
from tests.support.snapshots import checkpoints, small_tmpfs, snapshots
from tests.support.store_server import store_process, store_server
from tests.support.warm_parents import writers_in

__all__ = ["checkpoints", "pytest_pyfunc_call", "small_tmpfs", "snapshots", "store_process", "store_server"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        yield Path(name)
        # Of a test that failed half-way. They would hold inherited things, such as a lock, for minutes.
        for pid in writers_in(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
