"""A console over a simulated run of eight ranks that trains only when a test advances it, and browsers that open it."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast_daemon.console.ranks import rank_table
from tests.support.console_browser import Watch, chromium, new_context, watched_page
from tests.support.console_server import SimulatedConsole, simulated_console

Opened = AbstractContextManager[tuple[Page, Watch]]
OpenPage = Callable[..., Opened]


def advance(console: SimulatedConsole, seconds: float, change: Callable[..., object], *arguments: Any) -> None:
    """Change the run, and let time pass."""
    console.on_loop(lambda: change(*arguments))
    console.on_loop(lambda: console.run.advance(seconds))


def change_state(console: SimulatedConsole, **fields: Any) -> None:
    """Replace fields of the state of the run."""
    state = console.run.state
    assert state is not None
    console.on_loop(lambda: setattr(console.run, "state", replace(state, **fields)))


@pytest.fixture
def console(tmp_path: Path) -> Iterator[SimulatedConsole]:
    with simulated_console(tmp_path) as it:
        it.on_loop(lambda: it.run.advance(5.0))
        yield it


@pytest.fixture
def each_state_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the console read the ranks of every state, however soon it comes and whatever that costs."""
    monkeypatch.setattr(rank_table, "LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(rank_table, "COST_RATIO", 0.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def open_page(browser: Browser) -> OpenPage:
    """Return a function that opens an address in a context of its own. At the end, the page has no complaints."""

    @contextlib.contextmanager
    def opened(address: str, *, expects_refusals: bool = False, **look: Any) -> Iterator[tuple[Page, Watch]]:
        context = new_context(browser, **look)
        page, watch = watched_page(context, "/".join(address.split("/")[:3]))
        watch.expects_refusals = expects_refusals
        page.goto(address)
        if "#token=" in address:  # a second change of the hash must not overtake the token
            expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        yield page, watch
        context.close()
        watch.expect_nothing()

    return opened


@pytest.fixture
def page(open_page: OpenPage, console: SimulatedConsole) -> Iterator[Page]:
    """A page of an operator, who has logged in."""
    with open_page(console.address()) as (opened, _):
        yield opened
