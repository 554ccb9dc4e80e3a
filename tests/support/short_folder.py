"""A folder for sockets, whose paths must be shorter than those of pytest's own folders.

A conftest imports the fixture ``folder``.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        yield Path(name)
