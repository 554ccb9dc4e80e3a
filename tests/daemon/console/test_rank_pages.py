"""The page of one rank in a real browser: its words, its badge, and the stack that an operator takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.console_browser import PHONE, Theme, chromium, keep_screenshot, new_context, watched_page
from tests.support.console_server import SimulatedConsole, simulated_console

pytestmark = pytest.mark.system

RANKS = "#/runs/llama-7b/ranks"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def console(tmp_path: Path) -> Iterator[SimulatedConsole]:
    with simulated_console(tmp_path, ranks=8) as it:
        it.on_loop(lambda: it.run.advance(5.0))
        yield it


@pytest.fixture
def page(browser: Browser, console: SimulatedConsole) -> Iterator[Page]:
    """A page of an operator, who has logged in."""
    context = new_context(browser)
    opened, watch = watched_page(context, console.origin)
    opened.goto(console.address())
    expect(opened.get_by_role("heading", name="Runs")).to_be_visible()
    yield opened
    context.close()
    watch.expect_nothing()


def open_rank(page: Page, console: SimulatedConsole, rank: int) -> None:
    page.goto(f"{console.origin}/{RANKS}/{rank}")
    expect(page.get_by_role("complementary", name=f"Rank {rank}").locator("dl")).to_be_visible()


@pytest.mark.gate
def test_an_operator_takes_a_stack_and_reads_it(page: Page, console: SimulatedConsole) -> None:
    open_rank(page, console, 5)
    panel = page.get_by_role("complementary", name="Rank 5")
    stack = panel.get_by_role("region", name="Stack")
    expect(panel.get_by_text("Taken for incident 0001-hung-collective at")).to_be_visible()
    expect(stack).to_contain_text("Thread 4711")
    panel.get_by_role("button", name="Take a stack").click()
    expect(panel.get_by_role("status")).to_have_text("the stack of rank 5 is taken")
    expect(panel.get_by_text("Taken for an operator at")).to_be_visible()
    expect(stack).to_contain_text("train (train.py:88)")
    keep_screenshot(page, "stack-light-desktop")


def test_a_stack_that_cannot_be_taken_says_why(browser: Browser, console: SimulatedConsole) -> None:
    context = new_context(browser, theme="dark", size=PHONE)
    page, watch = watched_page(context, console.origin)
    watch.expects_refusals = True
    page.goto(console.address())
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    console.on_loop(lambda: console.run.untouchable.add(6))
    open_rank(page, console, 6)
    panel = page.get_by_role("complementary", name="Rank 6")
    panel.get_by_role("button", name="Take a stack").click()
    expect(panel.get_by_role("alert")).to_contain_text("there is no stack of rank 6: py-spy may not look into")
    keep_screenshot(page, "no-stack-dark-phone")
    console.on_loop(lambda: setattr(console.run, "leads", False))
    button = panel.get_by_role("button", name="Take a stack")
    expect(button).to_be_disabled()
    expect(button).to_have_accessible_description("another daemon leads the run: use its console")
    context.close()
    watch.expect_nothing()


def test_a_viewer_reads_stacks_and_takes_none(browser: Browser, console: SimulatedConsole) -> None:
    context = new_context(browser)
    page, watch = watched_page(context, console.origin)
    page.goto(console.address(console.viewer))
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    open_rank(page, console, 5)
    expect(page.get_by_role("region", name="Stack")).to_be_visible()
    expect(page.get_by_role("button", name="Take a stack")).to_have_count(0)
    context.close()
    watch.expect_nothing()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_badge_and_the_own_time_are_in_words(browser: Browser, console: SimulatedConsole, theme: Theme) -> None:
    context = new_context(browser, theme=theme)
    page, watch = watched_page(context, console.origin)
    page.goto(console.address())
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    console.on_loop(lambda: console.run.hang(3))
    console.on_loop(lambda: console.run.advance(1.5))
    open_rank(page, console, 4)
    panel = page.get_by_role("complementary", name="Rank 4")
    badge = panel.locator(".badge")
    expect(badge).to_have_text("waiting")
    expect(panel.locator("dl")).to_contain_text("Own time of a step410 ms, measured by events on the GPU")
    console.on_loop(console.run.revive)
    console.on_loop(lambda: console.run.advance(0.5))
    expect(badge).to_have_text("running")
    expect(badge).to_have_class("badge ok")
    keep_screenshot(page, f"running-rank-{theme}-desktop")
    context.close()
    watch.expect_nothing()
