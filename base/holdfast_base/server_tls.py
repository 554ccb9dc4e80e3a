"""Certificates of the servers that this process offers on a network: the metrics and the console.

Certificates are renewed while a run trains. So each connection gets the files as they are when it begins.
"""

import logging
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast_base.text import reason_of

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int], ...]
"""What changes when one of several files changes: inode, size and time of change of each."""


class TlsError(ValueError):
    """Files cannot be used for TLS; the message is one line that names them."""


def stamp_of(paths: tuple[Path, ...]) -> Stamp:
    """Return the stamp of some files. A file that is missing has one too."""
    found = []
    for path in paths:
        try:
            status = path.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)


class ServerTls:
    """A certificate and its key, and perhaps the authority whose clients are let in. The files are read again."""

    def __init__(self, names: Mapping[str, Path], client_certificates: ssl.VerifyMode = ssl.CERT_NONE) -> None:
        """Read the files. Raises TlsError.

        ``names``: what the user calls each file -> the file, in the order certificate, key and, if clients are
        verified, their authority.
        """
        self._names = dict(names)
        self._client_certificates = client_certificates
        self._stamp = stamp_of(tuple(self._names.values()))
        self._context = self._read()

    @property
    def context(self) -> ssl.SSLContext:
        """The settings of a connection that begins now.

        Files that cannot be used are one line in the log, and those before stay in use: a renewal may be half done.
        """
        stamp = stamp_of(tuple(self._names.values()))
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = self._read()
            except TlsError as error:
                log.error("%s: the certificate before stays in use", error)
        return self._context

    def renewing_context(self) -> ssl.SSLContext:
        """Return settings for a server that takes them once: each handshake looks for renewed files."""
        context = self._read()

        def renew(connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.context

        context.sni_callback = renew  # called without a name, too
        return context

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        pairs = list(self._names.items())
        load(context, pairs[:2], pairs[2:])
        context.verify_mode = self._client_certificates
        return context


Named = Sequence[tuple[str, Path]]
"""What the user calls each file, and the file."""


def load(context: ssl.SSLContext, pair: Named, authorities: Named) -> None:
    """Load a certificate with its key, or none, and authorities. Raises TlsError: the ssl module names no file."""
    for name, path in (*pair, *authorities):
        try:
            path.open("rb").close()
        except OSError as error:
            raise TlsError(f"{name} {path}: {error.strerror}") from None
    if pair:
        (certificate_name, certificate), (key_name, key) = pair
        try:
            # Without a password, an encrypted key would ask for one on the terminal.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise TlsError(
                f"{certificate_name} {certificate} and {key_name} {key} do not go together, or are no PEM files without"
                f" a password ({reason_of(error)})"
            ) from None
    for name, path in authorities:
        try:
            context.load_verify_locations(path)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(f"{name} {path} holds no certificates in PEM ({reason_of(error)})") from None


def console_tls(certificate: Path | None, key: Path | None, client_authority: Path | None) -> ServerTls | None:
    """Return what the options of the console ask for; None: no TLS. Raises TlsError, in one line that names them."""
    names = {
        "--console-cert-file": certificate,
        "--console-key-file": key,
        "--console-client-ca": client_authority,
    }
    given = {name: path for name, path in names.items() if path is not None}
    missing = [name for name in ("--console-cert-file", "--console-key-file") if name not in given]
    if given and missing:
        raise TlsError(f"{' and '.join(given)} without {missing[0]}: the console needs a certificate and its key")
    return ServerTls(given, ssl.CERT_REQUIRED if client_authority is not None else ssl.CERT_NONE) if given else None
