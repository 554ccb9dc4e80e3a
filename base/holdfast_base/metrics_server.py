"""Serves a Prometheus registry over HTTP from one thread, in agents and daemons.

Needs the package ``prometheus_client``; the hooks never import this module.

The server shares its process with the supervision of a run, so no client may cost it much. One thread serves all
connections, there are at most ``MAX_CONNECTIONS`` of them, and each has a deadline. If all places are taken, the oldest
client that has sent no request makes room for a new one. One descriptor is kept in reserve: metrics matter most when
the process has run out of descriptors.
"""

import contextlib
import errno
import http
import io
import logging
import os
import selectors
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from holdfast_base.metrics_access import MetricsAccess
from holdfast_base.sockets import listen

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
MAX_REQUEST_BYTES = 16 * 1024
"""Largest request, head included."""
READ_PATIENCE_S = 5.0
"""Longest time from the connection to the end of the request."""
WRITE_PATIENCE_S = 10.0
"""Longest time from the end of the request to the last byte of the answer."""
SHORTAGE_PAUSE_S = 0.2
"""Time for which no connection is accepted if the process has no descriptor for it."""

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass
class _Connection:
    socket: socket.socket
    deadline: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None


class MetricsServer:
    """A running server. ``port`` is the one that it listens on, also if the kernel chose it."""

    def __init__(self, listener: socket.socket, app: WsgiApp, access: MetricsAccess | None = None) -> None:
        self.port = int(listener.getsockname()[1])
        self.dropped_total = 0
        """Connections closed without a complete answer."""
        self._listener = listener
        self._app = app
        self._access = access
        self._failed_before = False
        self._connections: dict[int, _Connection] = {}
        self._listens_from = 0.0
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._reserve: int | None = None
        self._refill()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and every connection, and wait until the thread has ended."""
        if not self._closing:
            self._closing = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            os.close(self._wake)

    def _serve(self) -> None:
        try:
            while not self._closing:
                try:
                    self._turn()
                except Exception:  # noqa: BLE001  the thread must live as long as the process
                    self._log_once("metrics server: unexpected error")
                    time.sleep(SHORTAGE_PAUSE_S)
        finally:
            for connection in list(self._connections.values()):
                self._end(connection)
            self._listener.close()
            self._selector.close()
            if self._reserve is not None:
                os.close(self._reserve)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._next_event_s()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fd in self._connections:
                self._advance(self._connections[key.fd])
        now = time.monotonic()
        for connection in [each for each in self._connections.values() if each.deadline <= now]:
            self._drop(connection)
        if self._listens_from and self._listens_from <= now:
            self._listens_from = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _next_event_s(self) -> float | None:
        times = [connection.deadline for connection in self._connections.values()]
        if self._listens_from:
            times.append(self._listens_from)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _accept(self) -> None:
        """Accept one connection. Without a free descriptor the kernel does not say whether there are more."""
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _SHORTAGE and not self._free_descriptor():
                self._pause_listening()
            return  # otherwise the client has gone, or the next pass of the loop serves it
        accepted.setblocking(False)
        if len(self._connections) >= MAX_CONNECTIONS and not self._drop_idle():
            accepted.close()
            self.dropped_total += 1
            return
        if self._access is not None:
            try:
                accepted = self._access.wrap(accepted)
            except OSError:  # the client has gone
                self.dropped_total += 1
                return
        connection = _Connection(accepted, time.monotonic() + READ_PATIENCE_S)
        self._connections[accepted.fileno()] = connection
        self._selector.register(accepted, selectors.EVENT_READ)
        # Most clients have sent their request by now. It is read now, before another client can take this one's place.
        self._advance(connection)

    def _free_descriptor(self) -> bool:
        """Free one descriptor for the waiting connection. Return whether there was one to free."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
            return True
        return self._drop_idle()

    def _drop_idle(self) -> bool:
        """Drop the oldest connection that has sent no complete request. Return whether there was one."""
        idle = next((each for each in self._connections.values() if each.answer is None), None)
        if idle is not None:
            self._drop(idle)
        return idle is not None

    def _refill(self) -> None:
        if self._reserve is None:
            with contextlib.suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _pause_listening(self) -> None:
        """Ignore the port for a while: the selector would report it as ready all the time, and the loop would spin."""
        self._selector.unregister(self._listener)
        self._listens_from = time.monotonic() + SHORTAGE_PAUSE_S

    def _advance(self, connection: _Connection) -> None:
        try:
            if isinstance(connection.socket, ssl.SSLSocket):
                connection.socket.do_handshake()  # continues, or does nothing if it is complete
            if connection.answer is None:
                self._read(connection)
            else:
                self._write(connection)
        except ssl.SSLWantReadError:
            self._selector.modify(connection.socket, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._selector.modify(connection.socket, selectors.EVENT_WRITE)
        except BlockingIOError:
            pass
        except OSError:  # the client has gone
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        # As much as a TLS record holds. So none of it stays in the TLS library, where the selector would not see it.
        data = connection.socket.recv(MAX_REQUEST_BYTES)
        connection.request += data
        request = bytes(connection.request)
        if b"\r\n\r\n" in request or b"\n\n" in request:
            connection.answer = memoryview(self._answer(request))
        elif len(request) >= MAX_REQUEST_BYTES:
            connection.answer = memoryview(_response(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        elif not data:
            self._drop(connection)
            return
        else:
            return
        connection.deadline = time.monotonic() + WRITE_PATIENCE_S
        self._selector.modify(connection.socket, selectors.EVENT_WRITE)
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        assert connection.answer is not None
        sent = connection.socket.send(connection.answer)
        connection.answer = connection.answer[sent:]
        if not connection.answer:
            with contextlib.suppress(OSError):
                if isinstance(connection.socket, ssl.SSLSocket):
                    connection.socket.unwrap()  # sends the end; that of the client is not waited for
                connection.socket.shutdown(socket.SHUT_WR)
            self._end(connection)

    def _answer(self, request: bytes) -> bytes:
        environ = _environ(request)
        if environ is None:
            return _response(http.HTTPStatus.BAD_REQUEST)
        if self._access is not None and (refusal := self._access.refusal(environ.get("HTTP_AUTHORIZATION", ""))):
            return _response(refusal, ("WWW-Authenticate", "Basic"))
        started: list[tuple[str, list[tuple[str, str]]]] = []
        try:
            body = b"".join(self._app(environ, lambda status, headers, *_: started.append((status, headers))))
        except Exception:  # noqa: BLE001  a collector may raise anything: neither server nor run may stop
            self._log_once("metrics cannot be collected")
            return _response(http.HTTPStatus.INTERNAL_SERVER_ERROR)
        status, headers = started[0]
        return _head(status, [*headers, ("Content-Length", str(len(body)))]) + body

    def _log_once(self, message: str) -> None:
        if not self._failed_before:
            self._failed_before = True
            log.exception(message)

    def _drop(self, connection: _Connection) -> None:
        self.dropped_total += 1
        self._end(connection)

    def _end(self, connection: _Connection) -> None:
        descriptor = connection.socket.fileno()
        if self._connections.pop(descriptor, None) is not None:
            self._selector.unregister(connection.socket)
        connection.socket.close()
        self._refill()


def serve(registry: CollectorRegistry, address: str, port: int, config: Path | None = None) -> MetricsServer:
    """Serve ``registry`` on ``address``. With port 0 the kernel chooses a free one.

    ``config``: file of --metrics-config. Raises MetricsConfigError, and OSError in one line that names --metrics-port.
    """
    access = MetricsAccess(config) if config is not None else None
    try:
        listener = listen(address, port, MAX_CONNECTIONS)
    except OSError as error:
        raise OSError(
            f"cannot serve metrics on {address}:{port}: {error.strerror}: choose another --metrics-port (0: any free"
            " one)"
        ) from error
    return MetricsServer(listener, make_wsgi_app(registry), access)


def _environ(request: bytes) -> dict[str, Any] | None:
    """Return the WSGI environment of a request without a body, or None if it is not HTTP."""
    head, *lines = request.decode("latin-1").splitlines()
    words = head.split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    method, target, protocol = words
    path, _, query = target.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SERVER_PROTOCOL": protocol,
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
    }
    for line in lines:
        if not line:
            break
        name, colon, value = line.partition(":")
        if colon:
            environ[f"HTTP_{name.strip().upper().replace('-', '_')}"] = value.strip()
    return environ


def _response(status: http.HTTPStatus, *headers: tuple[str, str]) -> bytes:
    return _head(f"{status.value} {status.phrase}", [("Content-Length", "0"), *headers])


def _head(status: str, headers: list[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers), "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
