"""Sends one HTTP request to a service outside, within a time limit, and reads a bounded part of the answer.

It uses ``http.client``. A redirect is an answer like any other: a secret in the URL or in a header must not travel to
another host. Certificates are verified. ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY`` are obeyed, because nodes of a
cluster often have no other way out.
"""

import base64
import contextlib
import email.utils
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from holdfast_base.files import SecretError, read_secret

MOST_ANSWER_BYTES = 4096
_AGENT = "holdfast"
_MOST_EXCHANGES = 16
"""Most requests at a time: a thread that waits for a name server outlives its caller."""

_places = threading.BoundedSemaphore(_MOST_EXCHANGES)


class HttpError(Exception):
    """No answer came; the message says why, without the URL, which may be a secret."""


@dataclass(frozen=True)
class HttpAnswer:
    """What a service has answered."""

    status: int
    retry_after_s: float | None
    """Seconds that the service asks to wait; None: it does not say."""


def check_http_url(url: str) -> str:
    """Return why a request cannot be sent to ``url``, or "" if it can. The reason does not repeat the URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "it is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "use https://HOST/PATH or http://HOST/PATH"
    if parts.username is not None or parts.password is not None:
        return "it has a user or a password before the host"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "it has characters that a URL cannot have"
    return ""


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> HttpAnswer:
    """POST ``body``; return the answer, whatever its status.

    Raises HttpError if there is none within ``timeout_s``, whichever part of the exchange takes so long.
    """
    problem = check_http_url(url)
    if problem:
        raise HttpError(problem)
    end_s = time.monotonic() + timeout_s
    if not _places.acquire(timeout=timeout_s):
        raise HttpError(f"{_MOST_EXCHANGES} earlier requests have not ended: check the name service of this machine")
    try:
        exchange = _Exchange(urlsplit(url), body, headers, timeout_s)
        threading.Thread(target=exchange.run, name="holdfast-http", daemon=True).start()
    except (ValueError, RuntimeError):  # its text may hold a part of the proxy's password
        _places.release()
        raise HttpError("it cannot be sent: check the proxy in the environment, and the limit of threads") from None
    return exchange.result(end_s - time.monotonic())


class _Exchange:
    """One request and its answer, in a thread of its own: nothing can interrupt the lookup of a name."""

    def __init__(self, parts: SplitResult, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
        self._parts, self._body, self._headers = parts, body, headers
        self._timeout_s = timeout_s
        self._connection, self._target, self._extra = _connect(parts, timeout_s)
        self._opened: socket.socket | None = None
        """A second descriptor of the connection: ``http.client`` gives the first one away, to TLS and to the answer."""
        self._is_late = False
        self._has_ended = threading.Event()
        self._answer: HttpAnswer | HttpError = HttpError("the connection failed")

    def run(self) -> None:
        """Do the exchange."""
        try:
            self._answer = self._read()
        except HttpError as error:
            self._answer = error
        finally:
            self._connection.close()
            if self._opened is not None:
                self._opened.close()
            _places.release()
            self._has_ended.set()

    def result(self, wait_s: float) -> HttpAnswer:
        """Return the answer. Raises HttpError, also after ``wait_s``: the connection is cut then, and its thread ends.

        The timeout of a socket is no limit: it starts anew with each byte of a peer that answers slowly.
        """
        if not self._has_ended.wait(wait_s):
            self._is_late = True
            opened = self._opened or self._connection.sock
            if opened is not None:
                with contextlib.suppress(OSError):  # it is closed
                    opened.shutdown(socket.SHUT_RDWR)
            raise HttpError(f"no complete answer within {self._timeout_s:g} s")
        if isinstance(self._answer, HttpError):
            raise self._answer
        return self._answer

    def _read(self) -> HttpAnswer:
        try:
            self._open()
            headers = {"User-Agent": _AGENT, "Connection": "close", **self._extra, **self._headers}
            self._connection.request("POST", self._target, self._body, headers)
            response = self._connection.getresponse()
            with response:
                response.read(MOST_ANSWER_BYTES)
            return HttpAnswer(response.status, _retry_after_s(response.headers.get("Retry-After")))
        except ssl.SSLCertVerificationError as error:
            raise HttpError(f"its certificate cannot be verified: {error.verify_message}") from None
        except TimeoutError:
            raise HttpError(f"no answer within {self._timeout_s:g} s") from None
        except socket.gaierror as error:
            raise HttpError(f"its host is not found: {error.strerror}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise HttpError(f"the connection failed: {reason}") from None

    def _open(self) -> None:
        self._connection.connect()
        self._opened = self._connection.sock.dup()
        if self._is_late:
            raise TimeoutError
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection.sock = context.wrap_socket(self._connection.sock, server_hostname=self._parts.hostname)


def _connect(parts: SplitResult, timeout_s: float) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Return a connection that is not open yet, and has no TLS, the target of the request, and headers for a proxy."""
    is_https = parts.scheme == "https"
    default_port = http.client.HTTPS_PORT if is_https else http.client.HTTP_PORT
    host, port = parts.hostname or "", parts.port or default_port
    target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    proxy_url = getproxies().get(parts.scheme, "")
    if not proxy_url or proxy_bypass(parts.netloc):
        connection, extra = http.client.HTTPConnection(host, port, timeout=timeout_s), {}
    else:
        proxy = urlsplit(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
        connection = http.client.HTTPConnection(proxy.hostname or "", proxy.port or 8080, timeout=timeout_s)
        extra = _proxy_authorization(proxy)
        if is_https:
            connection.set_tunnel(host, port, extra)
            extra = {}
        else:
            target = urlunsplit((parts.scheme, parts.netloc, parts.path or "/", parts.query, ""))
    connection.default_port = default_port  # the header Host leaves it out
    return connection, target, extra


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def _retry_after_s(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header: a number, or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


TIMEOUT_S = 10.0
_MOST_BODY_BYTES = 10_000
"""The service keeps no more of a body."""


class PingError(Exception):
    """A ping did not arrive; the message is one line without the URL, which is a secret."""


def ping(url_file: Path, body: str) -> None:
    """Say that all is well. Raises PingError."""
    _send(_url(url_file), body)


def ping_failure(url_file: Path, fail_url_file: Path | None, reason: str) -> None:
    """Say that something has failed. Raises PingError."""
    if fail_url_file is not None:
        _send(_url(fail_url_file), reason)
        return
    parts = urlsplit(_url(url_file))
    _send(urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/fail", parts.query, "")), reason)


def _url(path: Path) -> str:
    try:
        url = read_secret(path)
    except SecretError as error:
        raise PingError(str(error)) from None
    problem = check_http_url(url)
    if problem:
        raise PingError(f"{path}: the URL in it cannot be used: {problem}")
    return url


def _send(url: str, body: str) -> None:
    data = body.encode()[:_MOST_BODY_BYTES]
    try:
        answer = post(url, data, {"Content-Type": "text/plain; charset=utf-8"}, timeout_s=TIMEOUT_S)
    except HttpError as error:
        raise PingError(str(error)) from None
    if not 200 <= answer.status < 300:
        raise PingError(f"the service answers {answer.status}")
