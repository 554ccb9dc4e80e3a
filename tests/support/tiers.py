"""The tier of a test: see docs/testing.md."""

import pytest

WHOLE_RUNS = ("benchmarks", "chaos", "examples", "gpu", "multinode", "trainer", "trainer_hooks/auto", "daemon/console")
"""Folders of tests/ whose system tests are whole runs, or cost as much, as pages in a browser do.

The others start real processes of one part.
"""


def expect_system_marker(request: pytest.FixtureRequest) -> None:
    """Fail a test that starts real processes and lacks the marker that keeps it out of `make test`."""
    if request.node.get_closest_marker("system") is None:
        pytest.fail(f"{request.node.nodeid} starts real processes: mark it with pytest.mark.system", pytrace=False)
