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


async def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "SEND_PATIENCE_S", 0.01)
    dropped: list[Any] = []

    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    await Guard(begin, (), dropped.append)(SCOPE, nothing, never)
    assert dropped == [SCOPE]


async def test_an_answer_that_fails_after_its_beginning_is_cut_off() -> None:
    sent: list[Any] = []
    dropped: list[Any] = []

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise OSError("the disk is gone")

    async def keep(message: Any) -> None:
        sent.append(message)

    await Guard(fail, (), dropped.append)(SCOPE, nothing, keep)
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert dropped == [SCOPE]


async def test_one_that_fails_before_gets_one_line() -> None:
    sent: list[Any] = []

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret detail")

    async def keep(message: Any) -> None:
        sent.append(message)

    await Guard(fail, (), lambda _: None)(SCOPE, nothing, keep)
    assert sent[0]["status"] == 503
    assert "secret" not in json.loads(sent[1]["body"])["error"]


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
        sent: list[Any] = []

        async def keep(message: Any) -> None:
            sent.append(message)

        host = origin.partition("://")[2]
        headers = [(b"host", host.encode()), (b"origin", origin.encode())]
        await Guard(begin, hosts, lambda _: None)({**SCOPE, "method": "POST", "headers": headers}, nothing, keep)
        return bool(sent[0]["status"] == 200)

    assert [origin for origin in ORIGINS if await passes(origin)] == passing


async def test_a_further_name_is_allowed_and_any_address_is_no_name() -> None:
    async def status_of(host: bytes, *hosts: str) -> int:
        sent: list[Any] = []

        async def keep(message: Any) -> None:
            sent.append(message)

        await Guard(begin, hosts, lambda _: None)({**SCOPE, "headers": [(b"host", host)]}, nothing, keep)
        return int(sent[0]["status"])

    assert await status_of(b"watch.example:443", "watch.example") == 200
    assert await status_of(b"watch.example") == 403
    assert await status_of(b"0.0.0.0:80", "0.0.0.0") == 403
