"""Fixtures for the tests of the daemon."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coroutines import pytest_pyfunc_call
from tests.support.store_server import store_process, store_server

__all__ = ["pytest_pyfunc_call", "store_process", "store_server"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        yield Path(name)
