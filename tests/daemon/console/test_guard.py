"""Clients that do not read, and answers that fail on their way."""

import asyncio
import json
from typing import Any

import pytest

from holdfast_daemon.console.serving import request_guard
from holdfast_daemon.console.serving.request_guard import Guard

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/",
    "headers": [(b"host", b"localhost")],
    "client": ("127.0.0.1", 1),
}


async def nothing() -> Any:
    return {"type": "http.request", "body": b""}


async def begin(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


async def answers(app: Any = begin, *hosts: str, dropped: list[Any] | None = None, **scope: Any) -> list[Any]:
    """Return the messages that the guard of an application sends for a request."""
    sent: list[Any] = []

    async def keep(message: Any) -> None:
        sent.append(message)

    note = [].append if dropped is None else dropped.append
    await Guard(app, hosts, note)({**SCOPE, **scope}, nothing, keep)
    return sent


async def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "SEND_PATIENCE_S", 0.01)
    dropped: list[Any] = []

    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    await Guard(begin, (), dropped.append)(SCOPE, nothing, never)
    assert dropped == [SCOPE]


async def test_an_answer_that_fails_after_its_beginning_is_cut_off() -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise OSError("the disk is gone")

    dropped: list[Any] = []
    assert [message["type"] for message in await answers(fail, dropped=dropped)] == ["http.response.start"]
    assert dropped == [SCOPE]


async def test_one_that_fails_before_gets_one_line() -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret detail")

    start, body = await answers(fail)
    assert start["status"] == 503
    assert "secret" not in json.loads(body["body"])["error"]


ORIGINS = ["https://watch.example", "http://watch.example", "https://127.0.0.1", "http://127.0.0.1"]


@pytest.mark.parametrize(
    ("hosts", "passing"),
    [
        ((), ["http://127.0.0.1"]),
        (("http://10.0.0.1",), ["http://127.0.0.1"]),  # the address that the console listens on
        (("watch.example",), ["https://watch.example", "http://watch.example", "http://127.0.0.1"]),
        (("https://watch.example",), ["https://watch.example", "http://127.0.0.1"]),
        (("HTTPS://Watch.example:8443/",), ["https://watch.example", "http://127.0.0.1"]),
        (("https://127.0.0.1",), ["https://127.0.0.1", "http://127.0.0.1"]),  # a proxy with TLS on this machine
    ],
)
async def test_the_page_of_a_proxy_may_act_by_its_own_scheme_alone(hosts: tuple[str, ...], passing: list[str]) -> None:
    async def passes(origin: str) -> bool:
        headers = [(b"host", origin.partition("://")[2].encode()), (b"origin", origin.encode())]
        start, *_ = await answers(begin, *hosts, method="POST", headers=headers)
        return bool(start["status"] == 200)

    assert [origin for origin in ORIGINS if await passes(origin)] == passing


@pytest.mark.parametrize(
    ("host", "hosts", "status"),
    [
        (b"watch.example:443", ("watch.example",), 200),
        (b"watch.example", (), 403),
        (b"0.0.0.0:80", ("0.0.0.0",), 403),
    ],
)
async def test_a_further_name_is_allowed_and_any_address_is_no_name(
    host: bytes, hosts: tuple[str, ...], status: int
) -> None:
    start, *_ = await answers(begin, *hosts, headers=[(b"host", host)])
    assert start["status"] == status
