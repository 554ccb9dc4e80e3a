"""What holds for every test: its tier, its place in the order, the CPU time that it costs, and its last end."""

import faulthandler
import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.tiers import WHOLE_RUNS

HERE = Path(__file__).parent
IN_WHOLE_RUNS = tuple(f"{folder}/" for folder in WHOLE_RUNS)


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole runs, and put the files that are likeliest to fail first: whole runs, then parts, then fast tests."""
    rank_of_file: dict[Path, int] = {}
    for item in items:
        is_system = item.get_closest_marker("system") is not None
        is_whole = is_system and item.path.relative_to(HERE).as_posix().startswith(IN_WHOLE_RUNS)
        if is_whole:
            item.add_marker("whole")
        rank_of_file[item.path] = min(rank_of_file.get(item.path, 2), 0 if is_whole else 1 if is_system else 2)
    items.sort(key=lambda item: rank_of_file[item.path])


def pytest_collection_finish() -> None:
    """Spare the garbage collector the thousands of tests that live to the end anyway: a twentieth of the CPU time."""
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr, which is not that of a test."""
    config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Remember the CPU time at the beginning of a test."""
    item.stash[_CPU] = _cpu_s()
    _watch(item)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Watch the end of a test, too: pytest ends the watch when a test fails."""
    _watch(item)


def _watch(item: pytest.Item) -> None:
    """End the process if a test outlives its timeout by far.

    The timeout is a signal. A test that waits outside Python never gets it, and one whose fixtures hang after it gets
    no second one: such a test would use up the time of all others, and nobody would learn which one it was. The end of
    the session after the last test may hang in the same way, so nothing here ends the watch.
    """
    mark = item.get_closest_marker("timeout")
    timeout_s = float(mark.args[0] if mark else item.config.getoption("timeout") or item.config.getini("timeout") or 0)
    if timeout_s:
        faulthandler.dump_traceback_later(1.5 * timeout_s, exit=True, file=item.config.stash[_STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in the report of a test what a gate must know of it."""
    report = yield
    if call.when == "teardown":
        markers = {mark.name for mark in item.iter_markers()}
        report.user_properties += [
            ("nodeid", item.nodeid),
            ("cpu_s", round(_cpu_s() - item.stash[_CPU], 3)),
            ("markers", " ".join(sorted(markers & {"system", "whole", "safety", "frameworks"}))),
        ]
    return report


_CPU = pytest.StashKey[float]()
_STDERR = pytest.StashKey[int]()


def _cpu_s() -> float:
    """Return the CPU time of this process and of all its children that have ended and were waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
