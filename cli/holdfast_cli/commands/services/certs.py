"""``holdfast certs init``: makes an authority, and certificates for the servers and the clients of a cluster."""

import datetime
import ipaddress
import os
import re
import shlex
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast_base.files import make_private_directory, replace_file
from holdfast_cli.errors import SettingsError
from holdfast_cli.flags.services import MakeCertificatesFlags

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
"""Longest validity that all clients take."""

_METRICS = """\
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
"""
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


def init(flags: MakeCertificatesFlags) -> None:
    """Write the files, and print the lines that use them."""
    local = ("localhost", "127.0.0.1", "::1", socket.gethostname())
    hosts = list(dict.fromkeys([*local, *(flags.hosts or ())]))
    now = datetime.datetime.now(datetime.UTC)
    write_certificates(flags.folder, hosts, now)
    ends = now + datetime.timedelta(days=CERTIFICATE_DAYS)
    print(f"certificates until {ends:%Y-%m-%d} for {', '.join(hosts)}")
    print("\n".join(_lines(Path(os.path.abspath(flags.folder)))))  # noqa: PTH100 (a link stays as it was named)


def write_certificates(folder: Path, hosts: Collection[str], now: datetime.datetime) -> None:
    """Write an authority, a certificate of servers with these names, and one of clients. Raises SettingsError."""
    names = [_general_name(host) for host in hosts]
    files = _make(names, now)
    try:
        make_private_directory(folder, "FOLDER")
        for name in files:
            if os.path.lexists(folder / name):
                raise SettingsError(f"{folder / name} exists, and nothing is overwritten: name another folder")
        for name, data in files.items():
            replace_file(folder / name, data, mode=0o600 if name.endswith(".key") else 0o644)
    except OSError as error:
        raise SettingsError(f"{folder}: {error.strerror}" if error.strerror else str(error)) from None


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _NAME.fullmatch(host):
            raise SettingsError(f"--host {host[:80]!r}: use the name of a host or an address") from None
    return x509.DNSName(host)


@dataclass(frozen=True)
class _Signed:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def files(self, name: str) -> dict[str, bytes]:
        pem = serialization.Encoding.PEM
        secret = self.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return {f"{name}.crt": self.certificate.public_bytes(pem), f"{name}.key": secret}


def _make(names: Sequence[x509.GeneralName], now: datetime.datetime) -> dict[str, bytes]:
    authority = _sign("holdfast authority", now, AUTHORITY_DAYS, None)
    # A server of Redis is also a client: of its master, and of the other servers of a cluster.
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    alternatives = x509.SubjectAlternativeName(names)
    server = _sign("holdfast server", now, CERTIFICATE_DAYS, authority, x509.ExtendedKeyUsage(uses), alternatives)
    client = _sign("holdfast client", now, CERTIFICATE_DAYS, authority, x509.ExtendedKeyUsage(uses[1:]))
    certificates = authority.files("ca") | server.files("server") | client.files("client")
    return {**certificates, "metrics.yml": _METRICS.encode()}


def _sign(
    name: str, now: datetime.datetime, days: int, authority: _Signed | None, *extensions: x509.ExtensionType
) -> _Signed:
    """Return a certificate and its key, signed by an authority. None: it is an authority, and signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = authority.key if authority is not None else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject if authority is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of nodes differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(authority is None, 0 if authority is None else None), critical=True)
        .add_extension(_usage(signs=authority is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return _Signed(builder.sign(signer, hashes.SHA256()), key)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _lines(folder: Path) -> list[str]:
    """Return how each file is used."""
    client = f"ssl_certfile={quote(str(folder / 'client.crt'))}&ssl_keyfile={quote(str(folder / 'client.key'))}"
    return [
        shlex.join(
            ["console:", "--console-cert-file", f"{folder}/server.crt", "--console-key-file", f"{folder}/server.key"]
        ),
        shlex.join(["metrics:", "--metrics-config", f"{folder}/metrics.yml"]),
        f"Redis: --redis 'rediss://HOST:6379/0?ssl_ca_certs={quote(str(folder / 'ca.crt'))}&{client}'",
        f"trust {folder / 'ca.crt'} in browsers and Prometheus; keep {folder / 'ca.key'} off the nodes",
    ]
