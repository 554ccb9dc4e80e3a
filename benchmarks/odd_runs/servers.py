"""Slow servers around a run. They are on loopback, and trickle, refuse or fall silent."""

import contextlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_PIECE_S = 0.1
_SEND = bytes(64)
_TAKE_BYTES = 1024
_BUFFER = 2048
_LINE_BYTES = 4096


class SlowServer:
    """A server that obeys the first line of each connection: ``VERB SECONDS close|silent [PATH]``.

    ``send`` sends a few bytes ten times a second. ``take`` reads as slowly. ``fifo`` writes to the FIFO at PATH.
    ``refuse`` answers that the server is overloaded. After SECONDS the stream is closed, or kept open in silence.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._silent: list[object] = []
        """Streams that stay open."""
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the server is closed
            while True:
                stream, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):  # the rank has ended
            line = b""
            while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
                line += stream.recv(1)
            verb, seconds, then, *path = line.decode().split()
            until_s = time.monotonic() + float(seconds)
            match verb:
                case "send":
                    _send(stream, until_s)
                case "take":
                    _take(stream, until_s)
                    if then == "close":
                        while stream.recv(_LINE_BYTES):
                            pass
                case "fifo":
                    self._write(path[0], until_s, then)
                case "refuse":
                    stream.sendall(b"503 overloaded\n")
            if then == "silent":
                self._silent.append(stream)
            else:
                stream.close()

    def _write(self, path: str, until_s: float, then: str) -> None:
        file = Path(path).open("wb", buffering=0)  # noqa: SIM115 - it may stay open
        while time.monotonic() < until_s:
            file.write(_SEND)
            time.sleep(_PIECE_S)
        if then == "silent":
            self._silent.append(file)
        else:
            file.close()


def _send(stream: socket.socket, until_s: float) -> None:
    while time.monotonic() < until_s:
        stream.sendall(_SEND)
        time.sleep(_PIECE_S)


def _take(stream: socket.socket, until_s: float) -> None:
    while time.monotonic() < until_s:
        stream.recv(_TAKE_BYTES)
        time.sleep(_PIECE_S)


class _SlowFiles(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        seconds = float(self.path.rsplit("/", 1)[1])
        self.send_response(200)
        self.end_headers()
        until_s = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < until_s:
                self.wfile.write(_SEND)
                time.sleep(_PIECE_S)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class SlowWorld:
    """The two slow servers of a run. Use it with ``with``."""

    def __enter__(self) -> "SlowWorld":
        self._server = SlowServer()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _SlowFiles)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._http.shutdown()
        self._http.server_close()

    @property
    def port(self) -> int:
        """Port of the slow server."""
        return self._server.port

    @property
    def http_port(self) -> int:
        """Port of the slow HTTP server."""
        return int(self._http.server_address[1])
