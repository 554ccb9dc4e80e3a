"""Redis behind TLS: both clients, a user with a password, and clear lines for what does not fit."""

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from holdfast_base.redis_client import StoreError, connect, connect_blocking
from holdfast_base.text import reason_of
from holdfast_cli.commands.services.certs import write_certificates
from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.store import check_url
from tests.support.store_server import StoreServer
from tests.support.tls_proxy import tls_proxy


def certificates(folder: Path) -> Path:
    write_certificates(folder, ["localhost", "127.0.0.1"], datetime.datetime.now(datetime.UTC))
    return folder


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return certificates(tmp_path / "certs")


def query(certs: Path) -> str:
    names = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "client.crt", "ssl_keyfile": "client.key"}
    return "&".join(f"{name}={quote(str(certs / file))}" for name, file in names.items())


@contextlib.asynccontextmanager
async def user(server: StoreServer, name: str, password: Path) -> AsyncIterator[None]:
    """Let a user in, and nobody without a password."""
    with server.client() as operator:
        operator.execute_command("ACL", "SETUSER", name, "on", f">{password.read_text()}", "~*", "+@all")
        operator.execute_command("ACL", "SETUSER", "default", "off")
        try:
            yield
        finally:
            operator.execute_command("ACL", "SETUSER", "default", "on")
            operator.execute_command("ACL", "DELUSER", name)


async def test_both_clients_use_certificates_and_a_user_of_the_url(
    store_server: StoreServer, certs: Path, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2")
    async with tls_proxy(certs, store_server.socket) as port, user(store_server, "me", password):
        url = check_url(f"rediss://me@localhost:{port}/0?{query(certs)}")
        client = connect(url, password)
        assert await client.set("key", "value")
        await client.aclose()
        blocking = connect_blocking(url, password)
        assert await asyncio.to_thread(blocking.get, "key") == b"value"
        blocking.close()
        stranger = connect(url.replace("me@", ""), password)
        with pytest.raises(StoreError, match=r"(?i)wrongpass|invalid username"):
            await stranger.get("key")
        await stranger.aclose()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("ssl_ca_certs={other}/ca.crt&ssl_certfile={own}/client.crt&ssl_keyfile={own}/client.key", "VERIFY_FAILED"),
        ("ssl_ca_certs={own}/ca.crt", "(?i)certificate.required|reset|closed|EOF"),
        (
            "ssl_ca_certs={own}/ca.crt&ssl_certfile={other}/client.crt&ssl_keyfile={other}/client.key",
            "(?i)unknown.ca|decrypt|reset|closed|EOF|broken",
        ),
    ],
)
async def test_certificates_that_one_side_does_not_trust_are_an_error_of_the_store(
    store_server: StoreServer, certs: Path, tmp_path: Path, given: str, problem: str
) -> None:
    other = certificates(tmp_path / "other")
    async with tls_proxy(certs, store_server.socket) as port:
        url = check_url(f"rediss://127.0.0.1:{port}?{given.format(own=certs, other=other)}")
        client, blocking = connect(url), connect_blocking(url)
        with pytest.raises(StoreError, match=problem) as refused:
            await client.get("key")
        assert "\n" not in reason_of(refused.value)
        with pytest.raises(StoreError, match=problem):
            await asyncio.to_thread(blocking.get, "key")
        await client.aclose()
        blocking.close()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("rediss://h?ssl_ca_certs=/none/ca.crt", "--redis: ssl_ca_certs /none/ca.crt: No such file or directory"),
        ("rediss://h?ssl_ca_certs={certs}/ca.key", "--redis: ssl_ca_certs .*/ca.key holds no certificates in PEM"),
        ("rediss://h?ssl_certfile={certs}/client.crt", "ssl_certfile and ssl_keyfile belong together"),
        ("rediss://h?ssl_certfile={certs}/client.crt&ssl_keyfile={certs}/ca.key", "ca.key do not go together"),
        ("rediss://h?ssl_cacerts=ca.crt", "--redis: ssl_cacerts is unknown: use ssl_ca_certs, ssl_certfile"),
        ("rediss://h?ssl_password=hunter2", "--redis: ssl_password is unknown"),
        ("redis://h?ssl_ca_certs=ca.crt", "ssl_ca_certs=: TLS needs rediss://"),
        ("rediss://me:hunter2@h?ssl_ca_certs=ca.crt", "--redis-password-file"),
    ],
)
def test_files_and_names_that_cannot_be_used_are_one_line_before_anything_starts(
    certs: Path, url: str, problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem) as refused:
        check_url(url.format(certs=certs))
    assert "\n" not in str(refused.value)
    assert "hunter2" not in str(refused.value)
