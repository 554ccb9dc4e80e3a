"""Who may read the metrics: the web configuration file of Prometheus' exporters, with TLS and passwords.

Names and meanings are those of the exporter-toolkit, so a file for the node exporter also serves here. It needs PyYAML,
and bcrypt for passwords, only where a file is named.
"""

import base64
import binascii
import hmac
import http
import logging
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_base.files import read_regular
from holdfast_base.server_tls import ServerTls, TlsError, stamp_of

log = logging.getLogger(__name__)

FLAG = "--metrics-config"
MOST_BYTES = 256 * 1024
MOST_COST = 14
"""Largest cost of a hash: a check of this one takes a second, in which no other client is served."""
MOST_WRONG = 10
"""Wrong passwords in WRONG_S after which further ones are refused unseen. One that was right before always passes."""
WRONG_S = 60.0

_AUTHENTICATION = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HASH = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")


class MetricsConfigError(ValueError):
    """The file of --metrics-config cannot be used; the message is one line that names it."""


@dataclass(frozen=True)
class _Config:
    tls: ServerTls | None
    users: dict[str, bytes]
    """Name -> hash."""


class MetricsAccess:
    """The rules in a file, which is read again when it changes. Only the thread of the metrics uses them."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file. Raises MetricsConfigError."""
        self._path = path
        self._clock = clock
        self._stamp = stamp_of((path,))
        self._config = _read(path)
        self._secret = secrets.token_bytes(32)
        self._right: dict[bytes, bytes] = {}
        """Hash -> keyed digest of the password that fits it: bcrypt takes 50 ms and more for each scrape."""
        self._wrong_s: list[float] = []

    def wrap(self, accepted: socket.socket) -> socket.socket:
        """Return a connection that begins now as the rules want it. Raises OSError if the client has gone."""
        self._read_again()
        if self._config.tls is None:
            return accepted
        return self._config.tls.context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)

    def _read_again(self) -> None:
        stamp = stamp_of((self._path,))
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._config = _read(self._path)
            except MetricsConfigError as error:
                log.error("%s: the rules before stay in use", error)

    def refusal(self, authorization: str) -> http.HTTPStatus | None:
        """Return why a request with this header Authorization is refused, or None if it is not."""
        users = self._config.users
        if not users:
            return None
        name, password = _credentials(authorization)
        if not password:
            return http.HTTPStatus.UNAUTHORIZED
        # An unknown name costs as much time as a known one: else names could be guessed.
        hashed = users.get(name, next(iter(users.values())))
        digest = hmac.digest(self._secret, password, "sha256")
        if name in users and hmac.compare_digest(self._right.get(hashed, b""), digest):
            return None
        now_s = self._clock()
        self._wrong_s = [at_s for at_s in self._wrong_s if now_s - at_s < WRONG_S]
        if len(self._wrong_s) >= MOST_WRONG:
            return http.HTTPStatus.TOO_MANY_REQUESTS
        if not (_fits(password, hashed) and name in users):
            self._wrong_s.append(now_s)
            return http.HTTPStatus.UNAUTHORIZED
        self._right[hashed] = digest
        return None


def _fits(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password, hashed)
    except ValueError:  # longer than the 72 bytes that count
        return False


def _credentials(authorization: str) -> tuple[str, bytes]:
    """Return the name and the password of a header; "" and nothing if it holds none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", b""
    try:
        name, _, password = base64.b64decode(encoded, validate=True).partition(b":")
        return name.decode(), password
    except (binascii.Error, ValueError):
        return "", b""


def _read(path: Path) -> _Config:
    try:
        fields = _mapping(_document(path), "the file", ("tls_server_config", "basic_auth_users"))
        if not fields:
            raise MetricsConfigError("it names neither tls_server_config nor basic_auth_users")
        tls = _tls(fields["tls_server_config"], path.parent) if "tls_server_config" in fields else None
        users = _users(fields["basic_auth_users"]) if "basic_auth_users" in fields else {}
    except (MetricsConfigError, TlsError) as error:
        raise MetricsConfigError(f"{FLAG} {path}: {error}") from None
    return _Config(tls, users)


def _document(path: Path) -> object:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    try:
        return yaml.safe_load(read_regular(path, MOST_BYTES))
    except OSError as error:
        raise MetricsConfigError(str(error.strerror)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise MetricsConfigError(f"it is no YAML ({' '.join(str(error).split())[:200]})") from None


def _missing(error: ModuleNotFoundError) -> MetricsConfigError:
    return MetricsConfigError(f"this needs {error.name}: install it with `pip install 'holdfast-torch[tls]'`")


def _mapping(value: object, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Return a table of known names. Raises MetricsConfigError: another name may be a rule that would be missing."""
    if not isinstance(value, dict):
        raise MetricsConfigError(f"{where} is no table of names and values")
    for name in value:
        if name not in known:
            raise MetricsConfigError(f"{where} has {str(name)[:60]!r}, which is unknown here: use {', '.join(known)}")
    return value


def _tls(value: object, folder: Path) -> ServerTls:
    files = ("cert_file", "key_file", "client_ca_file")
    fields = _mapping(value, "tls_server_config", (*files, "client_auth_type"))
    names = {name: folder / str(fields[name]) for name in files if fields.get(name)}
    for name in files[:2]:
        if name not in names:
            raise MetricsConfigError(f"tls_server_config lacks {name}")
    kind = str(fields.get("client_auth_type") or "NoClientCert")
    if kind not in _AUTHENTICATION:
        raise MetricsConfigError(f"client_auth_type {kind[:60]!r}: use {', '.join(_AUTHENTICATION)}")
    if ("client_ca_file" in names) != (kind != "NoClientCert"):
        raise MetricsConfigError(f"client_auth_type {kind} and client_ca_file: set both, or neither")
    return ServerTls(names, _AUTHENTICATION[kind])


def _users(value: object) -> dict[str, bytes]:
    if not isinstance(value, dict) or not value:
        raise MetricsConfigError("basic_auth_users is no table of names and hashes")
    users = {}
    for name, hashed in value.items():
        match = _HASH.fullmatch(str(hashed))
        if match is None:
            raise MetricsConfigError(f"basic_auth_users: what {str(name)[:60]!r} has is no hash of bcrypt")
        if int(match[1]) > MOST_COST:
            raise MetricsConfigError(f"basic_auth_users: the hash of {str(name)[:60]!r} costs more than {MOST_COST}")
        users[str(name)] = str(hashed).encode()
    try:
        import bcrypt  # noqa: F401 (a client must not be the first to miss it)
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return users
