"""Sends one HTTP request to a service outside, within a time limit, and reads a bounded part of the answer.

It stands on ``http.client``. A redirect is an answer like any other: a secret in the URL or in a header must not travel
to another host. Certificates are verified. ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY`` are obeyed, because nodes
of a cluster often have no other way out.
"""

import base64
import email.utils
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

MOST_ANSWER_BYTES = 4096
_AGENT = "holdfast"


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

    Raises HttpError if there is none within ``timeout_s``. The lookup of the host's name is the one part that the
    limit does not bound: call this where a wait does no harm.
    """
    problem = check_http_url(url)
    if problem:
        raise HttpError(problem)
    parts = urlsplit(url)
    connection, target, extra = _connect(parts, timeout_s)
    # The timeout of a socket starts anew with each byte. A peer that answers slowly is cut off by this timer.
    cut = threading.Timer(timeout_s, _cut, [connection])
    cut.daemon = True
    began_s = time.monotonic()
    cut.start()
    try:
        connection.request("POST", target, body, {"User-Agent": _AGENT, "Connection": "close", **extra, **headers})
        response = connection.getresponse()
        response.read(MOST_ANSWER_BYTES)
        return HttpAnswer(response.status, _retry_after_s(response.headers.get("Retry-After")))
    except ssl.SSLCertVerificationError as error:
        raise HttpError(f"its certificate cannot be verified: {error.verify_message}") from None
    except TimeoutError:
        raise HttpError(f"no answer within {timeout_s:g} s") from None
    except socket.gaierror as error:
        raise HttpError(f"its host is not found: {error.strerror}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() - began_s >= timeout_s:
            raise HttpError(f"no complete answer within {timeout_s:g} s") from None
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise HttpError(f"the connection failed: {reason}") from None
    finally:
        cut.cancel()
        connection.close()


def _connect(parts: SplitResult, timeout_s: float) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Return a connection that is not open yet, the target of the request, and headers for a proxy."""
    host, port = parts.hostname or "", parts.port
    target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    context = ssl.create_default_context() if parts.scheme == "https" else None
    proxy_url = getproxies().get(parts.scheme, "")
    if not proxy_url or proxy_bypass(parts.netloc):
        if context is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context), target, {}
        return http.client.HTTPConnection(host, port, timeout=timeout_s), target, {}
    proxy = urlsplit(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
    extra = _proxy_authorization(proxy)
    if context is not None:
        tunnel = http.client.HTTPSConnection(
            proxy.hostname or "", proxy.port or 8080, timeout=timeout_s, context=context
        )
        tunnel.set_tunnel(host, port, extra)
        return tunnel, target, {}
    direct = http.client.HTTPConnection(proxy.hostname or "", proxy.port or 8080, timeout=timeout_s)
    return direct, urlunsplit((parts.scheme, parts.netloc, parts.path or "/", parts.query, "")), extra


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def _cut(connection: http.client.HTTPConnection) -> None:
    opened: socket.socket | None = connection.sock
    if opened is None:
        return
    try:
        opened.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed


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
