"""A real HTTP server that takes messages and answers as a test says."""

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Answer:
    """How a request is answered."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    waits_for: threading.Event | None = None
    """Event before which there is no answer."""
    closes: bool = False
    """Whether the connection is closed without an answer."""
    body: bytes = b"ok"


class Receiver:
    """The requests that came in. ``answers`` are given in turn; the last one is given again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [Answer()]
        self.received: list[Received] = []
        self.url = ""
        self._lock = threading.Lock()

    def take(self, request: Received) -> Answer:
        """Keep a request and return the answer to it."""
        with self._lock:
            self.received.append(request)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def notices(self) -> list[dict[str, Any]]:
        """Return the notices of all messages, in order; pings are none."""
        messages = [one for one in list(self.received) if one.headers.get("Content-Type") == "application/json"]
        return [notice for message in messages for notice in message.json["notices"]]


@contextlib.contextmanager
def receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Serve on a free port of the loopback until the block ends. ``tls``: the server's side of HTTPS."""
    it = Receiver()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(it.take))
    if tls is not None:
        # The handshake is done by the thread of a request: a client that breaks it off must not end the server.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    it.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield it
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(take: Callable[[Received], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            answer = take(Received(self.path, dict(self.headers), body))
            if answer.waits_for is not None:
                answer.waits_for.wait()
            if answer.closes:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
            pass

    return Handler
