"""What the tests of the agent share."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_agent import processes
from tests.proto.coroutines import pytest_pyfunc_call
from tests.proto.store_server import store_process, store_server

__all__ = ["pytest_pyfunc_call", "store_process", "store_server"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        yield Path(name)
        for pid in _warm_parents_and_their_ranks(name):  # of a test that failed half-way
            processes.kill_session(pid)


def _warm_parents_and_their_ranks(folder: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"holdfast_agent.warm_parent\0{folder}" in (entry / "cmdline").read_text():
                yield int(entry.name)
