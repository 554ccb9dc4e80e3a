"""The tier of a test: see docs/testing.md."""

import pytest


def expect_system_marker(request: pytest.FixtureRequest) -> None:
    """Fail a test that starts real processes and lacks the marker that keeps it out of `make test`."""
    if request.node.get_closest_marker("system") is None:
        pytest.fail(f"{request.node.nodeid} starts real processes: mark it with pytest.mark.system", pytrace=False)
