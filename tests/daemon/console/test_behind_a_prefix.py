"""The console behind a proxy that serves it below a path: pages, streams, cookies, actions and downloads work."""

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.daemon.console.conftest import OpenPage
from tests.support.console_server import SimulatedConsole

pytestmark = pytest.mark.system

PREFIX = "/team/holdfast"
_OWN = ("connection", "keep-alive", "transfer-encoding")
"""Headers of one connection, which a proxy does not pass on."""


class PrefixProxy(ThreadingHTTPServer):
    """Passes requests below PREFIX on to the console of a port, without the prefix, and refuses others."""

    daemon_threads = True

    def __init__(self, console_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.console_port = console_port
        self.keeps_host = True
        self.refused: list[str] = []
        """Paths outside of the prefix that a browser has requested."""


class _Handler(BaseHTTPRequestHandler):
    server: PrefixProxy

    def do_GET(self) -> None:
        if not self.path.startswith(f"{PREFIX}/"):
            self.server.refused.append(self.path)
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.console_port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        if not self.server.keeps_host:
            headers["Host"] = f"127.0.0.1:{self.server.console_port}"
        with contextlib.closing(upstream), contextlib.suppress(OSError):
            upstream.request(self.command, self.path.removeprefix(PREFIX), body or None, headers)
            answer = upstream.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.end_headers()
            while part := answer.read1(65536):  # a stream has no end: each part is passed on as it comes
                self.wfile.write(part)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Write nothing."""


@pytest.fixture
def proxy(console: SimulatedConsole) -> Iterator[PrefixProxy]:
    with PrefixProxy(console.port) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture
def page(open_page: OpenPage, console: SimulatedConsole, proxy: PrefixProxy) -> Iterator[Page]:
    """A page of an operator, who has logged in through the proxy."""
    with open_page(f"http://127.0.0.1:{proxy.server_port}{PREFIX}/#token={console.operator}") as (opened, _):
        yield opened
    assert proxy.refused in ([], ["/favicon.ico"])


def go(page: Page, place: str) -> None:
    page.evaluate("(place) => { location.hash = place; }", place)


@pytest.mark.gate
def test_every_page_works_below_the_path_of_a_proxy(page: Page, console: SimulatedConsole, tmp_path: Path) -> None:
    assert urlsplit(page.url).path == f"{PREFIX}/"
    row = page.locator("table.runs tbody tr").first
    expect(row).to_contain_text("llama-7b")
    console.on_loop(lambda: console.run.advance(5.0))
    row.get_by_role("link", name="llama-7b").click()
    expect(page.locator(".progress-line")).to_contain_text("20 of 10,000 steps")
    console.on_loop(lambda: console.run.advance(1.0))
    expect(page.locator(".progress-line")).to_contain_text("22 of 10,000 steps")  # the stream goes through it
    go(page, "#/runs/llama-7b/ranks/5")
    panel = page.get_by_role("complementary", name="Rank 5")
    panel.get_by_role("button", name="Take a stack").click()
    expect(panel.get_by_role("status")).to_have_text("the stack of rank 5 is taken")
    go(page, "#/runs/llama-7b/incidents/0001-hung-collective")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download everything").click()
    download.value.save_as(tmp_path / "incident.tar.gz")
    assert (tmp_path / "incident.tar.gz").stat().st_size > 0
    for place, sign in (("#/runs/llama-7b/checkpoints", "table"), ("#/holdfast", "table")):
        go(page, place)
        expect(page.locator(sign).first).to_be_visible()


def test_behind_a_proxy_that_changes_host_the_page_says_what_to_set(open_page: OpenPage, proxy: PrefixProxy) -> None:
    proxy.keeps_host = False
    with open_page(f"http://127.0.0.1:{proxy.server_port}{PREFIX}/", expects_refusals=True) as (page, _):
        text = page.get_by_text("could not be loaded")
        # It is held back while the script loads, so that a browser that runs the script does not show it.
        assert text.evaluate("it => getComputedStyle(it).animation").startswith("3s")
        expect(text).to_be_visible()
        expect(text.locator("code")).to_have_text(["Host", "--console-host https://NAME"])


def test_the_session_is_one_of_the_path_and_ends_with_the_logout(page: Page) -> None:
    (cookie,) = page.context.cookies()
    assert (cookie.get("path"), cookie.get("httpOnly")) == (f"{PREFIX}/api", True)
    page.reload()
    expect(page.locator("table.runs tbody tr").first).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []
