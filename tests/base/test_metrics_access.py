"""The web configuration file of the metrics: TLS, client certificates and passwords, at a real server."""

import base64
import datetime
import http.client
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import bcrypt
import pytest
from prometheus_client import Gauge
from prometheus_client.registry import CollectorRegistry

from holdfast_base import metrics_access, metrics_server
from holdfast_base.metrics_access import MetricsAccess, MetricsConfigError
from holdfast_base.metrics_server import MetricsServer
from holdfast_cli.commands.services.certs import write_certificates
from tests.support.coroutines import wait_until

PASSWORD_HASH = bcrypt.hashpw(b"hunter2", b"$2b$04$" + 22 * b".").decode()
TLS = "tls_server_config: {cert_file: server.crt, key_file: server.key"
USERS = f"basic_auth_users: {{prometheus: '{PASSWORD_HASH}'}}\n"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "certs"
    write_certificates(folder, ["localhost", "127.0.0.1"], datetime.datetime.now(datetime.UTC))
    return folder


@contextmanager
def serving(config: Path) -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Gauge("answer", "What it is.", registry=registry).set(42)
    with closing(metrics_server.serve(registry, "127.0.0.1", 0, config)) as server:
        yield server


def trusting(folder: Path, *, client: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    if client:
        context.load_cert_chain(folder / "client.crt", folder / "client.key")
    return context


def scrape(port: int, context: ssl.SSLContext | None = None, password: str = "") -> tuple[int, bytes]:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    )
    headers = {"Authorization": basic("prometheus", password)} if password else {}
    try:
        connection.request("GET", "/metrics", headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_metrics_are_served_over_tls_and_to_no_other_client(certificates: Path) -> None:
    config = certificates / "tls.yml"
    config.write_text(f"{TLS}}}\n")
    with serving(config) as server:
        assert scrape(server.port, trusting(certificates))[1].endswith(b"answer 42.0\n")
        with pytest.raises((http.client.HTTPException, OSError)):
            scrape(server.port)
        with pytest.raises(ssl.SSLCertVerificationError):
            scrape(server.port, ssl.create_default_context())


def test_file_of_certs_init_lets_in_clients_with_its_certificate_alone(certificates: Path) -> None:
    with serving(certificates / "metrics.yml") as server:
        assert scrape(server.port, trusting(certificates, client=True))[0] == 200
        with pytest.raises(OSError):
            scrape(server.port, trusting(certificates))
        wait_until(lambda: server.dropped_total == 1, "the stranger is dropped")


def test_handshakes_that_never_end_hold_up_no_other_client_and_are_dropped(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "READ_PATIENCE_S", 2.0)
    with serving(certificates / "metrics.yml") as server:
        places = [("127.0.0.1", server.port)] * 10
        silent = [socket.create_connection(place, timeout=10) for place in places]
        for client in silent[:5]:
            client.sendall(b"\x16\x03\x01")  # the first bytes of a handshake
        assert scrape(server.port, trusting(certificates, client=True))[0] == 200
        assert [client.recv(1) for client in silent] == [b""] * 10
        assert server.dropped_total == 10


def test_answer_larger_than_all_buffers_arrives_whole_over_tls(certificates: Path) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("many", "Many.", ["label"], registry=registry)
    for index in range(40_000):
        gauge.labels(f"{index:0100}")
    with closing(metrics_server.serve(registry, "127.0.0.1", 0, certificates / "metrics.yml")) as server:
        status, body = scrape(server.port, trusting(certificates, client=True))
    assert (status, body.count(b"\nmany{")) == (200, 40_000)


def test_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    folder, renewed = tmp_path / "certs", tmp_path / "renewed"
    for one in (folder, renewed):
        write_certificates(one, ["127.0.0.1"], datetime.datetime.now(datetime.UTC))
    with serving(folder / "metrics.yml") as server:
        before = trusting(folder, client=True)
        assert scrape(server.port, before)[0] == 200
        (renewed / "server.crt").replace(folder / "server.crt")
        assert scrape(server.port, before)[0] == 200, "the key is still that of the certificate before"
        for name in ("server.key", "ca.crt"):
            (renewed / name).replace(folder / name)
        (renewed / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())
        assert scrape(server.port, trusting(renewed, client=True))[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            scrape(server.port, before)


def test_password_is_asked_for_and_the_file_is_read_again(tmp_path: Path) -> None:
    config = tmp_path / "web.yml"
    config.write_text(USERS)
    with serving(config) as server:
        assert scrape(server.port)[0] == 401
        assert scrape(server.port, password="wrong")[0] == 401
        assert scrape(server.port, password="hunter2")[0] == 200
        config.write_text("basic_auth_users: {}\n")  # refused: the rules before stay in use
        assert scrape(server.port, password="hunter2")[0] == 200
        changed = bcrypt.hashpw(b"another", bcrypt.gensalt(4)).decode()
        config.write_text(f"basic_auth_users: {{prometheus: '{changed}'}}\n")
        assert scrape(server.port, password="hunter2")[0] == 401
        assert scrape(server.port, password="another")[0] == 200


def test_right_password_is_hashed_once_and_wrong_ones_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "web.yml"
    config.write_text(USERS)
    now_s, checks = 100.0, 0
    check = metrics_access._fits

    def counted(password: bytes, hashed: bytes) -> bool:
        nonlocal checks
        checks += 1
        return check(password, hashed)

    monkeypatch.setattr(metrics_access, "_fits", counted)
    access = MetricsAccess(config, lambda: now_s)
    for _ in range(3):
        assert access.refusal(basic("prometheus", "hunter2")) is None
    assert checks == 1
    guesses = [access.refusal(basic("prometheus", f"guess{number}")) for number in range(13)]
    assert guesses == [401] * 10 + [429] * 3
    assert access.refusal(basic("prometheus", "hunter2")) is None
    assert checks == 11
    now_s += metrics_access.WRONG_S
    assert access.refusal(basic("stranger", "hunter2")) == 401
    assert checks == 12, "an unknown name takes as long as a known one"


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !!!", "Bearer hunter2", basic("prometheus", ""), basic("prometheus", "x" * 100), "Basic /w=="],
)
def test_header_without_the_password_is_refused(tmp_path: Path, header: str) -> None:
    config = tmp_path / "web.yml"
    config.write_text(USERS)
    assert MetricsAccess(config).refusal(header) == 401


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is no table"),
        ("{}", "neither tls_server_config nor basic_auth_users"),
        ("a: [", "is no YAML"),
        ("http_server_config: {http2: true}", "the file has 'http_server_config', which is unknown here"),
        ("tls_server_config: {min_version: TLS13}", "tls_server_config has 'min_version', which is unknown here"),
        ("tls_server_config: {cert_file: server.crt}", "tls_server_config lacks key_file"),
        (f"{TLS}, client_auth_type: RequireAnyClientCert}}", "client_auth_type 'RequireAnyClientCert': use NoClientCe"),
        (f"{TLS}, client_ca_file: ca.crt}}", "client_auth_type NoClientCert and client_ca_file: set both"),
        (f"{TLS}, client_auth_type: RequireAndVerifyClientCert}}", "and client_ca_file: set both, or neither"),
        ("tls_server_config: {cert_file: none.crt, key_file: server.key}", "cert_file .*none.crt: No such file"),
        ("tls_server_config: {cert_file: server.crt, key_file: client.key}", "client.key do not go together"),
        (
            f"{TLS}, client_auth_type: VerifyClientCertIfGiven, client_ca_file: ca.key}}",
            "client_ca_file .*ca.key holds no certificates",
        ),
        ("basic_auth_users: {me: hunter2}", "what 'me' has is no hash of bcrypt$"),
        ("basic_auth_users: {me: '" + PASSWORD_HASH.replace("$04$", "$31$") + "'}", "costs more than 14"),
    ],
)
def test_file_that_cannot_be_used_is_one_line(certificates: Path, text: str, problem: str) -> None:
    config = certificates / "web.yml"
    config.write_text(text)
    with pytest.raises(MetricsConfigError, match=problem) as caught:
        MetricsAccess(config)
    assert str(caught.value).startswith(f"--metrics-config {config}: ")
    assert "\n" not in str(caught.value)


def test_missing_file_and_missing_package_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "web.yml"
    with pytest.raises(MetricsConfigError, match=r"web.yml: No such file"):
        MetricsAccess(config)
    config.write_text(USERS)
    for package in ("bcrypt", "yaml"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MetricsConfigError, match=rf"needs {package}: .*holdfast-torch\[tls\]"):
            MetricsAccess(config)
