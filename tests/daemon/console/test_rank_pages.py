"""The page of one rank in a real browser: its words, its badge, and the stack that an operator takes."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.daemon.console.conftest import OpenPage, advance
from tests.support.console_browser import PHONE, Theme, keep_screenshot
from tests.support.console_server import SimulatedConsole, simulated_console

pytestmark = pytest.mark.system

RANKS = "#/runs/llama-7b/ranks"


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


def test_a_stack_that_cannot_be_taken_says_why(open_page: OpenPage, console: SimulatedConsole) -> None:
    with open_page(console.address(), expects_refusals=True, theme="dark", size=PHONE) as (page, _):
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


def test_a_viewer_reads_stacks_and_takes_none(open_page: OpenPage, console: SimulatedConsole) -> None:
    with open_page(console.address(console.viewer)) as (page, _):
        open_rank(page, console, 5)
        expect(page.get_by_role("region", name="Stack")).to_be_visible()
        expect(page.get_by_role("button", name="Take a stack")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_badge_and_the_own_time_are_in_words(open_page: OpenPage, console: SimulatedConsole, theme: Theme) -> None:
    with open_page(console.address(), theme=theme) as (page, _):
        advance(console, 1.5, console.run.hang, 3)
        open_rank(page, console, 4)
        panel = page.get_by_role("complementary", name="Rank 4")
        badge = panel.locator(".badge")
        expect(badge).to_have_text("waiting")
        expect(panel.locator("dl")).to_contain_text("Own time of a step410 ms, measured by events on the GPU")
        advance(console, 0.5, console.run.revive)
        expect(badge).to_have_text("running")
        expect(badge).to_have_class("badge ok")
        keep_screenshot(page, f"running-rank-{theme}-desktop")


def test_a_large_run_is_seen_page_by_page_and_searched_by_keyboard_alone(open_page: OpenPage, tmp_path: Path) -> None:
    with simulated_console(tmp_path, ranks=2000, with_files=False) as large, open_page(large.address()) as (page, _):
        advance(large, 1.0, large.run.kill, 1999)
        page.goto(f"{large.origin}/{RANKS}")
        pages = page.get_by_role("navigation", name="Pages of ranks")
        expect(pages.get_by_role("status")).to_have_text("1 to 1,024 of 2,000 ranks in all")
        expect(page.locator(".totals")).to_contain_text("2,000 ranks: 1 exited")
        expect(page.locator(".odd li").first).to_contain_text("rank 1999")
        expect(page.locator(".odd li").first).to_contain_text("exited")
        pages.get_by_role("button", name="Next page").click()
        expect(pages.get_by_role("status")).to_have_text("1,025 to 2,000 of 2,000 ranks in all")
        expect(pages.get_by_role("button", name="Next page")).to_be_disabled()
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
        page.keyboard.type("node0002")
        page.keyboard.press("Enter")
        expect(pages.get_by_role("status")).to_have_text("8 ranks that match")
        expect(page.get_by_role("application", name="Map of 8 ranks")).to_be_visible()
        page.get_by_role("application").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".said")).to_contain_text(", node0002: ")
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        expect(pages.get_by_role("status")).to_have_text("1 to 1,024 of 2,000 ranks in all")
