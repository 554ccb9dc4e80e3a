"""A plugin of pytest that notes which test runs which line. Each process writes a data file of its own.

It measures this process only: what a test starts shows in the tests of its own parts.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FOLDER = "HOLDFAST_COVERAGE_FOLDER"
"""Names the folder for the data files."""
SOURCES = "HOLDFAST_COVERAGE_SOURCES"
"""Names the folders of source to measure, separated by colons."""

_measured = coverage.Coverage(
    data_file=str(Path(os.environ.get(FOLDER, ".")) / "lines"),
    data_suffix=True,
    source=os.environ.get(SOURCES, "").split(":"),
    config_file=False,
)


def pytest_configure(config: pytest.Config) -> None:
    """Begin before any module of the source is imported, except in the process that only hands out tests."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the lines of a test, its fixtures included, under its name."""
    _measured.switch_context(item.nodeid)
    result = yield
    _measured.switch_context("")
    return result


def pytest_unconfigure() -> None:
    """Write the data file."""
    _measured.stop()
    _measured.save()
