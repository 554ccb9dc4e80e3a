"""The report as a browser shows it: charts are drawn, nothing is loaded, and axe finds nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser

from holdfast_cli.reports.page import report_page
from holdfast_cli.reports.redaction import redaction
from holdfast_cli.reports.run_facts import find_source, read_facts
from tests.support.console_browser import chromium
from tests.support.histories import counted
from tests.support.report_runs import TIME_USE_S, healthy_steps, hostile_incident, write_run


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    steps = [*healthy_steps(100), counted(100, nonfinite=("loss",), step_s=0.5)]
    write_run(folder / "daemon", steps, incidents=[hostile_incident()], time_use_s=TIME_USE_S)
    facts = read_facts(find_source(folder / "daemon", "r"))
    path = folder / "report.html"
    path.write_text(report_page(facts, redaction([], redact_hosts=False), show_arguments=False))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_report(browser: Browser, page_file: Path, scheme: str) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    page = context.new_page()
    trouble: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    page.wait_for_function("document.querySelectorAll('.chart canvas').length === 4")
    page.hover(".chart >> nth=0")
    assert trouble == []
    assert requests == [page_file.as_uri()]
    assert page.evaluate("window.hurt") is None
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    painted = (
        "(canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(one => one))"
        "(document.querySelector('.chart canvas'))"
    )
    assert page.evaluate(painted)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 28)" if scheme == "dark" else "rgb(255, 255, 255)")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    context.close()


def test_the_report_prints_on_white_ground(browser: Browser, page_file: Path) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF")
    context.close()


def test_the_report_fits_a_narrow_screen(browser: Browser, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 700})
    page.goto(page_file.as_uri())
    page.wait_for_selector(".chart canvas")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()
