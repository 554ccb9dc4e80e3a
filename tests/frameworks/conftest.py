"""Tests with the packages of other projects. They run in the environment of `make test-frameworks`."""

import pytest


@pytest.fixture(autouse=True)
def _is_marked_for_frameworks(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("frameworks") is None:
        pytest.fail(f"{request.node.nodeid} needs the packages of frameworks: mark it with pytest.mark.frameworks")
