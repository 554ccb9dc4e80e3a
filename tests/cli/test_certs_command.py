"""``holdfast certs init``: files that fit together, private keys, and nothing overwritten."""

import datetime
import shlex
import socket
import ssl
import stat
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from holdfast_base.redis_client import check_url
from holdfast_base.server_tls import ServerTls
from tests.cli.conftest import holdfast

KEYS = ("ca.key", "client.key", "server.key")


def certificate(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())


def test_it_makes_private_files_that_fit_together_and_says_how_to_use_them(tmp_path: Path) -> None:
    folder = tmp_path / "with space" / "certs"
    result = holdfast("certs", "init", folder, "--host", "head", "--host", "10.0.0.1", "--host", "localhost")
    assert result.exit_code == 0
    names = {"ca.crt", "ca.key", "server.crt", "server.key", "client.crt", "client.key", "metrics.yml"}
    assert {path.name for path in folder.iterdir()} == names
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *(folder / key for key in KEYS))]
    assert modes == [0o700, 0o600, 0o600, 0o600]
    for name in ("server", "client"):
        files = {"--cert": folder / f"{name}.crt", "--key": folder / f"{name}.key", "--ca": folder / "ca.crt"}
        ServerTls(files, ssl.CERT_REQUIRED)
    lines = result.stdout.splitlines()
    assert f"for localhost, 127.0.0.1, ::1, {socket.gethostname()}, head, 10.0.0.1" in lines[0]
    words = ["--console-cert-file", f"{folder}/server.crt", "--console-key-file", f"{folder}/server.key"]
    assert shlex.split(lines[1]) == ["console:", *words]
    assert shlex.split(lines[2]) == ["metrics:", "--metrics-config", f"{folder}/metrics.yml"]
    url = lines[3].split("'")[1]
    assert check_url(url) == url
    assert "with%20space/certs/client.key" in urlsplit(url).query


def test_certificates_hold_the_names_and_end_in_time(tmp_path: Path) -> None:
    assert holdfast("certs", "init", tmp_path / "certs", "--host", "10.0.0.1").exit_code == 0
    authority, server, client = (certificate(tmp_path / "certs", name) for name in ("ca", "server", "client"))
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", socket.gethostname()} <= set(names.get_values_for_type(x509.DNSName))
    assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "::1", "10.0.0.1"}
    days = [(one.not_valid_after_utc - one.not_valid_before_utc).days for one in (authority, server, client)]
    assert days == [3650, 825, 825]
    assert all(one.not_valid_before_utc < datetime.datetime.now(datetime.UTC) for one in (authority, server, client))
    for one in (server, client):
        one.verify_directly_issued_by(authority)


@pytest.mark.parametrize("there", ["ca.key", "metrics.yml"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    folder = tmp_path / "certs"
    folder.mkdir(mode=0o700)
    (folder / there).write_text("mine")
    result = holdfast("certs", "init", folder)
    assert (result.exit_code, [path.name for path in folder.iterdir()]) == (78, [there])
    assert f"{there} exists, and nothing is overwritten" in result.stderr


def test_folder_that_others_can_enter_and_name_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    result = holdfast("certs", "init", tmp_path / "open")
    assert (result.exit_code, "is open to others" in result.stderr) == (78, True)
    for host in ("a b", "", "https://head", "head:6379"):
        result = holdfast("certs", "init", tmp_path / "certs", "--host", host)
        assert (result.exit_code, "use the name of a host or an address" in result.stderr) == (78, True)
    assert not (tmp_path / "certs").exists()


def test_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast_cli.commands.services.certs", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    result = holdfast("certs", "init", tmp_path / "certs")
    assert (result.exit_code, "holdfast-torch[tls]" in result.stderr) == (1, True)
