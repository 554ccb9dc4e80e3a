"""The console over TLS: the session, client certificates, renewed files, and clients that say nothing."""

import datetime
import http.client
import json
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from holdfast_base.server_tls import TlsError
from holdfast_cli.commands.services.certs import write_certificates
from holdfast_daemon.console import console_server
from tests.support.console_server import SimulatedConsole, simulated_console


def certificates(folder: Path) -> Path:
    write_certificates(folder, ["localhost", "127.0.0.1"], datetime.datetime.now(datetime.UTC))
    return folder


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return certificates(tmp_path / "certs")


def files(certs: Path, **others: Path) -> dict[str, Any]:
    return {"console_cert_file": certs / "server.crt", "console_key_file": certs / "server.key", **others}


def trusting(certs: Path, *, client: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    if client:
        context.load_cert_chain(certs / "client.crt", certs / "client.key")
    return context


def ask(it: SimulatedConsole, context: ssl.SSLContext | None, **headers: str) -> int:
    """Return the status of an answer."""
    place = ("127.0.0.1", it.port)
    connection = (
        http.client.HTTPSConnection(*place, timeout=10, context=context)
        if context is not None
        else http.client.HTTPConnection(*place, timeout=10)
    )
    try:
        connection.request("GET", "/api/runs", headers={"Authorization": f"Bearer {it.viewer}", **headers})
        return connection.getresponse().status
    finally:
        connection.close()


def test_session_over_tls_has_a_secure_cookie_and_pages_of_https_alone(tmp_path: Path, certs: Path) -> None:
    with simulated_console(tmp_path, ranks=2, with_files=False, **files(certs)) as it:
        connection = http.client.HTTPSConnection("localhost", it.port, timeout=10, context=trusting(certs))
        origin = f"https://localhost:{it.port}"
        connection.request("POST", "/api/login", json.dumps({"token": it.operator}), {"Origin": origin})
        answer = connection.getresponse()
        cookie = answer.headers["Set-Cookie"]
        assert (answer.status, json.loads(answer.read())) == (200, {"role": "operator"})
        assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        connection.request("GET", "/api/session", headers={"Cookie": cookie.partition(";")[0]})
        assert connection.getresponse().status == 200
        connection.close()
        assert ask(it, trusting(certs), Origin=f"https://127.0.0.1:{it.port}") == 200
        assert ask(it, trusting(certs), Origin=f"http://127.0.0.1:{it.port}") == 403
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(it, None)


def test_client_without_a_certificate_of_the_authority_is_not_let_in(tmp_path: Path, certs: Path) -> None:
    given = files(certs, console_client_ca=certs / "ca.crt")
    with simulated_console(tmp_path, ranks=2, with_files=False, **given) as it:
        assert ask(it, trusting(certs, client=True)) == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(it, trusting(certs))
        stranger = trusting(certs)
        other = certificates(tmp_path / "other")
        stranger.load_cert_chain(other / "client.crt", other / "client.key")
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(it, stranger)


def test_renewed_certificate_is_used_without_a_restart(tmp_path: Path, certs: Path) -> None:
    renewed = certificates(tmp_path / "renewed")
    with simulated_console(tmp_path, ranks=2, with_files=False, **files(certs)) as it:
        assert ask(it, trusting(certs)) == 200
        for name in ("server.crt", "server.key"):
            (renewed / name).replace(certs / name)
        assert ask(it, trusting(renewed)) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(it, trusting(certs))


def test_client_that_never_ends_its_handshake_is_dropped(
    tmp_path: Path, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_server, "FIRST_REQUEST_S", 1.0)
    with (
        simulated_console(tmp_path, ranks=2, with_files=False, **files(certs)) as it,
        socket.create_connection(("127.0.0.1", it.port), timeout=20) as silent,
    ):
        assert ask(it, trusting(certs)) == 200
        assert silent.recv(1) == b""


def test_plain_http_beyond_this_machine_is_a_line_in_the_log(
    tmp_path: Path, certs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    everywhere = {"console_address": "0.0.0.0"}
    for given in ({}, {**everywhere, **files(certs)}, everywhere):
        assert caplog.messages == []
        with caplog.at_level(logging.WARNING), simulated_console(tmp_path, ranks=2, with_files=False, **given):
            pass
    (line,) = caplog.messages
    assert "plain HTTP" in line
    assert "--console-cert-file and --console-key-file" in line


def test_certificate_that_cannot_be_used_is_no_reason_for_plain_http(tmp_path: Path, certs: Path) -> None:
    (certs / "server.key").unlink()
    with (
        pytest.raises(TlsError, match=r"--console-key-file .*server.key: No such file"),
        simulated_console(tmp_path, ranks=2, with_files=False, **files(certs)),
    ):
        pass
