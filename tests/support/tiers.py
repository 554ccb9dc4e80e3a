"""The tier of a test: see docs/testing.md."""

import pytest


def expect_system_marker(request: pytest.FixtureRequest) -> None:
    """Fail a test that starts real processes and would run in `make test` without having been chosen for it."""
    if request.node.get_closest_marker("system") is None:
        pytest.fail(f"{request.node.nodeid} starts real processes: mark it with pytest.mark.system", pytrace=False)
