"""The pictures of the console in docs/images/, made from a simulated run, and the words that they show.

The pictures are small: a page shows what matters at its top.
"""

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page

from tests.support.console_browser import Theme, new_context, watched_page
from tests.support.console_server import SimulatedConsole
from tests.support.console_story import tell_story

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
WORDS = Path(__file__).resolve().parents[1] / "daemon" / "console" / "pictures"
"""Folder with the words of each picture, next to the test that makes the pictures."""
SIZE = (1200, 860)
_WORDS = "h1, h2, h3, th, dt, label, legend, caption, button, nav a"
_NUMBER = re.compile(r"\d+ [A-Z][a-z]{2} [\d:, ]+|\d[\d,.]*")
"""A date with its time, whose month is a word, or a number."""


@dataclass(frozen=True)
class View:
    """What a picture shows."""

    place: str
    """Address in the console."""
    sign: str
    """Selector of what must be visible."""
    theme: Theme


VIEWS = {
    "console-run": View("#/runs/llama-7b", ".chart .newest:not(:empty)", "light"),
    "console-ranks": View("#/runs/llama-7b/ranks/3", ".panel pre", "dark"),
    "console-incident": View("#/runs/llama-7b/incidents/INCIDENT", ".timeline", "light"),
}
"""Name of a picture -> what it shows."""


@dataclass(frozen=True)
class Picture:
    """A picture that was made."""

    name: str
    path: Path
    words: tuple[str, ...]
    """Headings, columns, labels and buttons of the page, in its order, with # for each number."""

    def recorded(self) -> str:
        """Return the text that is kept of a picture: a new picture and its words are only written together."""
        return "\n".join((f"sha256 {digest(self.path)}", *self.words, ""))


def make_pictures(console: SimulatedConsole, browser: Browser, folder: Path) -> Iterator[Picture]:
    """Make all pictures in a folder. The console must have 64 ranks and 3 runs."""
    incident = tell_story(console)
    for name, view in VIEWS.items():
        context = new_context(browser, theme=view.theme, size=SIZE)
        page, watch = watched_page(context, console.origin)
        page.goto(console.address())
        page.goto(f"{console.origin}/{view.place.replace('INCIDENT', incident)}")
        page.wait_for_selector(view.sign)
        path = folder / f"{name}.png"
        words = _settled_words(page)
        page.screenshot(path=path)
        context.close()
        watch.expect_nothing()
        yield Picture(name, path, words)


def _settled_words(page: Page) -> tuple[str, ...]:
    """Return the words of a page once they, and the picture, no longer change."""
    before: tuple[object, ...] = ()
    while before != (now := (_words(page), page.screenshot())):
        before = now
        page.wait_for_timeout(500)
    return now[0]


def _words(page: Page) -> tuple[str, ...]:
    found = page.locator(_WORDS).all_inner_texts()
    return tuple(text for each in found if (text := _NUMBER.sub("#", " ".join(each.split()))))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def png_size(path: Path) -> tuple[int, int]:
    """Return width and height of a PNG file, pixels."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n"), f"{path} is no PNG"
    width, height = struct.unpack(">II", head[16:24])
    return width, height
