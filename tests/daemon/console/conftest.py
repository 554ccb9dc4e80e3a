"""A console over a simulated run of eight ranks that trains only when a test advances it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.console_server import SimulatedConsole, simulated_console


@pytest.fixture
def console(tmp_path: Path) -> Iterator[SimulatedConsole]:
    with simulated_console(tmp_path) as it:
        it.on_loop(lambda: it.run.advance(5.0))
        yield it
