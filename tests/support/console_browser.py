"""A browser for tests of the console's pages."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
DESKTOP = (1440, 900)
PHONE = (360, 740)
SCREENSHOTS = "HOLDFAST_CONSOLE_SCREENSHOTS"
"""Environment variable: folder for a picture of every page. Without it, none are taken."""

Theme = Literal["dark", "light"]


@dataclass
class Watch:
    """What a page did that it should not: lines in the browser's console, and requests to other hosts."""

    origin: str
    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    expects_refusals: bool = False
    """The browser reports each answer that is an error: a test that causes some sets this."""

    def message(self, message: ConsoleMessage) -> None:
        """Note an error or a warning."""
        refused = message.text.startswith("Failed to load resource")
        if message.type in ("error", "warning") and not (refused and self.expects_refusals):
            self.complaints.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def request(self, request: Request) -> None:
        """Note a request to another host."""
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and f"{address.scheme}://{address.netloc}" != self.origin:
            self.strangers.append(request.url)

    def expect_nothing(self) -> None:
        """Fail if there was something."""
        assert self.complaints == []
        assert self.strangers == []


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser; skips the test on a machine that has none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: no chromium, chromium-browser or google-chrome is on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def new_context(browser: Browser, *, theme: Theme = "light", size: tuple[int, int] = DESKTOP) -> BrowserContext:
    """Return a browser context without a session."""
    return browser.new_context(
        color_scheme=theme,
        viewport={"width": size[0], "height": size[1]},
        timezone_id="Europe/Berlin",
        reduced_motion="reduce",
    )


def watched_page(context: BrowserContext, origin: str) -> tuple[Page, Watch]:
    """Return a page of the context, and what it does that it should not."""
    page = context.new_page()
    page.set_default_timeout(15_000)
    watch = Watch(origin)
    page.on("console", watch.message)
    page.on("pageerror", lambda error: watch.complaints.append(f"uncaught: {error}"))
    page.on("request", watch.request)
    return page, watch


def keep_screenshot(page: Page, name: str) -> None:
    """Write a picture of the whole page, if the environment names a folder for it."""
    if folder := os.environ.get(SCREENSHOTS):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
