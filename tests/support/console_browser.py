"""A browser for tests of the console's pages."""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.support.programs import chromium_path

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
    """Yield a browser. A test on a machine without one is left out."""
    path = chromium_path()
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


_NOTE_TEXT = """
([selector, text]) => {
  const noted = document.documentElement.dataset;
  delete noted.unixMs;
  window.noting?.disconnect();
  const look = () => {
    const shows = [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text));
    if (shows && noted.unixMs === undefined) noted.unixMs = Date.now();
  };
  window.noting = new MutationObserver(look);
  window.noting.observe(document.body, { subtree: true, childList: true, characterData: true });
  look();
}
"""


def note_text(page: Page, selector: str, text: str) -> None:
    """Let the page note when one of its elements first has a text, until it is asked for the next text."""
    page.evaluate(_NOTE_TEXT, [selector, text])


def noted_unix_s(page: Page, patience_s: float = 30.0) -> float:
    """Wait until the page has noted the text; return when that was, by the clock of this machine, or infinity."""
    try:
        page.wait_for_selector("html[data-unix-ms]", state="attached", timeout=1000.0 * patience_s)
    except PlaywrightTimeoutError:
        return math.inf
    return int(page.evaluate("document.documentElement.dataset.unixMs")) / 1000.0
