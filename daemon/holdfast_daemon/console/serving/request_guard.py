"""What every request passes: checks of Host and Origin, limits, headers of the answer, and errors as one line."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast_daemon.console.serving.browser_json import encoded

log = logging.getLogger(__name__)

MOST_BODY_BYTES = 16 * 1024
"""Largest body of a request: a token, or the fields of an action."""
BODY_PATIENCE_S = 5.0
"""Time in which the body of a request must come."""
SEND_PATIENCE_S = 20.0
"""Time after which a client that does not read is dropped."""
_HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_LOCAL = ("127.0.0.1", "localhost", "::1")
_ANY = ("0.0.0.0", "::", "")


class RefusedRequestError(Exception):
    """A request gets an error; the message is one line for people."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Guard:
    """Wraps the application.

    Browsers send a page's requests to any address that its name resolves to. So a name that is not expected is refused:
    else a foreign page could read the console through a name of its own (DNS rebinding).
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], drop: Callable[[Scope], None], scheme: str = "http"
    ) -> None:
        """``hosts``: further names by which the console may be called. ``drop`` ends the connection of a request.

        A name may have a scheme: ``https://NAME`` accepts the pages of that scheme alone. Behind a name without one may
        be a proxy with TLS or none, so both pass. The local names are those of the console itself, which
        serves ``scheme``.
        """
        self._app = app
        self._schemes = _schemes(hosts, scheme)
        self._drop = drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        answer = _Answer(scope, send, self._drop)
        try:
            self._check(scope)
            await self._app(scope, _limited(scope, receive), answer.send)
        except RefusedRequestError as error:
            await answer.error(error.status, str(error))
        except _Gone:
            return
        except Exception as error:  # noqa: BLE001 (the client gets an error, and the daemon lives)
            # Handlers are contained: this is an answer that could not be sent to its end, such as an unreadable file.
            log.warning("an answer of the console was cut off: %r", error)
            await answer.error(503, "the answer was cut off: the daemon's log says more")

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        schemes = self._schemes.get(_name(host))
        if schemes is None:
            raise RefusedRequestError(
                403, f"the console is not called {host[:80]!r}: start the daemon with --console-host for another name"
            )
        origin = headers.get(b"origin")
        if origin is None:
            if scope["method"] != "GET":
                raise RefusedRequestError(403, "the header Origin is missing: it must name the console's own address")
        else:
            scheme, place = _origin(origin.decode("latin-1"))
            if place != host.lower():
                raise RefusedRequestError(
                    403, "the header Origin names another site: requests come from the console alone"
                )
            if scheme not in schemes:
                wanted = f"{scheme[:20]}://{_name(host)[:80]}"
                raise RefusedRequestError(
                    403,
                    f"the header Origin names a page at {wanted}, where this console serves"
                    f" {' and '.join(sorted(schemes))}: for a proxy, start the daemon with --console-host {wanted}",
                )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > MOST_BODY_BYTES:
            raise RefusedRequestError(400, f"the body is larger than {MOST_BODY_BYTES} bytes")


def _schemes(hosts: Collection[str], own: str) -> Mapping[str, frozenset[str]]:
    """Return name -> schemes by which pages may come from it. ``own``: that of the console itself."""
    found = {name: {own} for name in _LOCAL}
    for host in hosts:
        scheme, _, name = host.lower().rpartition("://")
        if scheme:
            name = _name(name.rstrip("/"))
        if name not in _ANY:
            found.setdefault(name, set()).update((scheme,) if scheme else ("http", "https"))
    return {name: frozenset(schemes) for name, schemes in found.items()}


def _origin(origin: str) -> tuple[str, str]:
    """Return the scheme of an Origin header, and its host and port; "" and "" if it names none."""
    try:
        parts = urlsplit(origin)
        return parts.scheme.lower(), parts.netloc.lower()
    except ValueError:
        return "", ""


def _name(host: str) -> str:
    """Return the name in a Host header, without port and brackets; "" if it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _limited(scope: Scope, receive: Receive) -> Receive:
    """Return what reads the body of a request, with limits on its size and on the time in which it must come.

    A client that sends headers and no body would keep its connection for as long as it likes, and few are to be had.
    """
    read = 0
    deadline_s = time.monotonic() + BODY_PATIENCE_S

    async def limited() -> Message:
        nonlocal read
        if scope["method"] == "GET":  # it has no body: this waits for the client to leave
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            raise RefusedRequestError(408, f"the body did not come within {BODY_PATIENCE_S:g} s") from None
        read += len(message.get("body", b""))
        if read > MOST_BODY_BYTES:
            raise RefusedRequestError(400, f"the body is larger than {MOST_BODY_BYTES} bytes")
        return message

    return limited


class _Gone(Exception):  # noqa: N818 (no error: the client does not read, and is dropped)
    pass


class _Answer:
    """The answer to one request, on its way to a client that may be slow."""

    def __init__(self, scope: Scope, send: Send, drop: Callable[[Scope], None]) -> None:
        self._scope = scope
        self._send = send
        self._drop = drop
        self._begun = False

    async def send(self, message: Message) -> None:
        """Send a part, with our headers on the first."""
        if message["type"] == "http.response.start":
            self._begun = True
            names = {name for name, _ in message["headers"]}
            ours = {"cache-control": "no-store", **_HEADERS}
            if message["status"] == 408:  # the rest of the body may never come
                ours["connection"] = "close"
            more = [(name.encode(), value.encode()) for name, value in ours.items() if name.encode() not in names]
            message = {**message, "headers": [*message["headers"], *more]}
        try:
            await asyncio.wait_for(self._send(message), SEND_PATIENCE_S)
        except TimeoutError:
            self._drop(self._scope)
            raise _Gone from None

    async def error(self, status: int, reason: str) -> None:
        """Send an error, unless the answer has begun: then the connection ends."""
        if self._begun:
            self._drop(self._scope)
            return
        body = encoded({"error": " ".join(reason.split())[:500]})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
