import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast_base import http_post
from holdfast_base.http_post import HttpError, check_http_url, post
from tests.support.certificates import loopback_certificate
from tests.support.receiver import Answer, Receiver, receiver


@pytest.fixture
def service() -> Iterator[Receiver]:
    with receiver() as it:
        yield it


def send(url: str, timeout_s: float = 10.0) -> int:
    return post(url, b"{}", {"X-Mark": "m"}, timeout_s=timeout_s).status


def test_a_request_arrives_whole(service: Receiver) -> None:
    assert send(f"{service.url}/a/b?c=d") == 200
    [request] = service.received
    assert (request.path, request.body, request.headers["X-Mark"]) == ("/a/b?c=d", b"{}", "m")


def test_a_redirect_is_an_answer_and_is_not_followed(service: Receiver) -> None:
    with receiver() as other:
        service.answers = [Answer(302, {"Location": f"{other.url}/stolen"})]
        assert send(service.url) == 302
        assert other.received == []


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("begin", "scheme"),
    [
        (b"", "http"),  # a line that never ends
        (HEAD + b"X: ", "http"),
        (HEAD + b"Content-Length: 4096\r\n\r\n", "http"),
        (HEAD + b"\r\n", "http"),
        (HEAD + b"Connection: close\r\nContent-Length: 4096\r\n\r\n", "http"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n800\r\n", "http"),
        (b"\x16\x03\x03\x3f\xff", "https"),  # a record of TLS
    ],
    ids=["line", "header", "body", "body to the end", "body of a closing answer", "chunk", "handshake"],
)
def test_a_service_that_drips_is_left_and_cut_while_it_still_drips(begin: bytes, scheme: str) -> None:
    is_left = threading.Event()
    cut_after_caller: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(begin)
                while True:
                    peer.sendall(b"1")
                    time.sleep(0.02)
            cut_after_caller.append(is_left.wait(10))

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises(HttpError, match=r"within 0\.3 s"):
            send(f"{scheme}://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.3)
        is_left.set()
        thread.join(10)
    assert cut_after_caller == [True]
    wait_for_no_exchange()


def test_a_name_that_is_looked_up_forever_is_left_in_time_and_blocks_a_bounded_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()

    def never(*_: object, **__: object) -> NoReturn:
        release.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "no name server")

    monkeypatch.setattr(http_post, "_places", threading.BoundedSemaphore(2))
    monkeypatch.setattr(socket, "getaddrinfo", never)
    try:
        for _ in range(2):
            with pytest.raises(HttpError, match=r"no complete answer within 0\.05 s"):
                send("http://service.invalid/", timeout_s=0.05)
        with pytest.raises(HttpError, match="earlier requests have not ended"):
            send("http://service.invalid/", timeout_s=0.05)
        assert len(exchanges()) == 2
    finally:
        release.set()
        wait_for_no_exchange()


def exchanges() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-http"]


def wait_for_no_exchange() -> None:
    for thread in exchanges():
        thread.join(10)
    assert exchanges() == []


def test_a_large_answer_is_not_read(service: Receiver) -> None:
    service.answers = [Answer(body=b"x" * 50_000_000)]
    assert send(service.url) == 200


def test_an_error_never_shows_the_url(service: Receiver) -> None:
    service.answers = [Answer(closes=True)]
    with pytest.raises(HttpError) as error:
        send(f"{service.url}/secret")
    assert "secret" not in str(error.value)
    with pytest.raises(HttpError) as error:
        send("http://user:secret@127.0.0.1/")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(("value", "expected"), [("7", 7.0), ("-1", 0.0), ("soon", None), ("nan", 0.0)])
def test_seconds_of_retry_after(service: Receiver, value: str, expected: float | None) -> None:
    service.answers = [Answer(429, {"Retry-After": value})]
    assert post(service.url, b"", {}, timeout_s=10).retry_after_s == expected


def test_a_date_of_retry_after(service: Receiver) -> None:
    service.answers = [Answer(503, {"Retry-After": formatdate(time.time() + 1000, usegmt=True)})]
    found = post(service.url, b"", {}, timeout_s=10).retry_after_s
    assert found is not None
    assert 900 < found <= 1000


def test_a_proxy_of_the_environment_is_used(service: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", service.url.replace("http://", "http://me:pass@"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert send("http://service.invalid/hook") == 200
    [request] = service.received
    assert request.path == "http://service.invalid/hook"
    assert request.headers["Proxy-Authorization"] == "Basic bWU6cGFzcw=="


def test_a_proxy_that_is_no_address_is_an_error_and_takes_no_place(
    service: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:none")
    monkeypatch.setenv("no_proxy", "")
    for _ in range(http_post._MOST_EXCHANGES + 1):
        with pytest.raises(HttpError, match="check the proxy in the environment"):
            post("http://service.example/", b"", {}, timeout_s=5.0)


def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = loopback_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with receiver(context) as service:
        with pytest.raises(HttpError, match="certificate cannot be verified"):
            send(service.url)
        assert service.received == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert send(service.url) == 200
        with pytest.raises(HttpError, match="certificate cannot be verified"):
            send(service.url.replace("127.0.0.1", "localhost"))
    assert len(service.received) == 1


@pytest.mark.parametrize(
    "url", ["", "ftp://a/b", "https://", "https://u:p@a/", "https://a/b c", "https://a/\r\nX: y", "http://a:x/"]
)
def test_urls_that_cannot_be_used(url: str) -> None:
    assert check_http_url(url)
