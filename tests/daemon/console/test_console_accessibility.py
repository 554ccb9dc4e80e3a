"""Every page of the console follows the rules of axe, in dark and light, and fits a phone.

With the environment variable HOLDFAST_CONSOLE_SCREENSHOTS, a picture of every page is kept in that folder.
"""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.daemon.console.conftest import OpenPage
from tests.support.console_browser import DESKTOP, PHONE, Theme, keep_screenshot
from tests.support.console_server import SimulatedConsole, simulated_console
from tests.support.console_story import tell_story

pytestmark = pytest.mark.system

RUN = "#/runs/llama-7b"
PAGES = {
    "runs": ("#/", "table.runs"),
    "run": (RUN, ".chart .newest:not(:empty)"),
    "ranks": (f"{RUN}/ranks", ".mesh canvas"),
    "rank": (f"{RUN}/ranks/3", ".panel pre"),
    "incidents": (f"{RUN}/incidents", "table"),
    "incident": (f"{RUN}/incidents/INCIDENT", ".timeline"),
    "checkpoints": (f"{RUN}/checkpoints", "table"),
    "holdfast": ("#/holdfast", "table"),
}
LOOKS: list[tuple[Theme, str, tuple[int, int]]] = [
    (theme, name, size) for theme in ("light", "dark") for name, size in (("desktop", DESKTOP), ("phone", PHONE))
]


Hung = tuple[SimulatedConsole, str]


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    """A console whose first run hangs, and the incident."""
    with simulated_console(tmp_path_factory.mktemp("console"), ranks=64, runs=3) as console:
        yield console, tell_story(console)


def violations(page: Page) -> list[str]:
    """Return the rules that the page breaks, each with the elements."""
    found = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {[node['target'] for node in rule['nodes']][:5]}" for rule in found]


@pytest.mark.parametrize(("theme", "name", "size"), LOOKS)
def test_every_page_can_be_read_by_everybody(
    open_page: OpenPage, hung: Hung, theme: Theme, name: str, size: tuple[int, int]
) -> None:
    with open_page(hung[0].address(), theme=theme, size=size) as (page, _):
        found = {}
        for title, (place, sign) in PAGES.items():
            page.goto(f"{hung[0].origin}/{place.replace('INCIDENT', hung[1])}")
            expect(page.locator(sign).first).to_be_visible()
            expect(page.locator(".loading")).to_have_count(0)
            keep_screenshot(page, f"{title}-{theme}-{name}")
            broken = violations(page)
            if page.evaluate("document.documentElement.scrollWidth") > size[0]:
                broken.append("the page scrolls sideways")
            if broken:
                found[title] = broken
    assert found == {}


@pytest.mark.gate
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_login_and_a_dialog_can_be_read_by_everybody(open_page: OpenPage, hung: Hung, theme: Theme) -> None:
    with open_page(hung[0].origin, expects_refusals=True, theme=theme, size=PHONE) as (page, _):
        expect(page.get_by_label("Token")).to_be_visible()
        keep_screenshot(page, f"login-{theme}-phone")
        assert violations(page) == []
        page.goto(hung[0].address())
        expect(page.locator("table.runs")).to_be_visible()  # a second change of the hash must not overtake the token
        page.goto(f"{hung[0].origin}/{RUN}")
        page.get_by_role("button", name="Inject a fault").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        keep_screenshot(page, f"dialog-{theme}-phone")
        assert violations(page) == []


def test_axe_finds_what_is_wrong(open_page: OpenPage, hung: Hung) -> None:
    with open_page(hung[0].origin, expects_refusals=True) as (page, _):
        expect(page.get_by_label("Token")).to_be_visible()
        page.evaluate("document.querySelector('label').remove()")
        assert any(line.startswith("label:") for line in violations(page))
