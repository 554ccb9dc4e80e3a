"""Pauses in which the rank reads from a slow server."""

import os
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from benchmarks.odd_runs.scene import Scene

_PIECE = 4096
_RETRY_S = 0.5
TRICKLE_S = 3.0
"""Seconds after which a trickle stops. A twin with such a trickle must be restarted."""


def read(scene: Scene) -> None:
    """Read what a slow file system sends over TCP, a few bytes at a time."""
    with ask(scene, f"send {scene.pause.left_s} close") as stream:
        while stream.recv(_PIECE):
            pass


def read_until_it_stops(scene: Scene) -> None:
    """Read from a server that falls silent: the connection stays open."""
    with ask(scene, f"send {TRICKLE_S} silent") as stream:
        _move(scene, lambda: stream.recv(_PIECE))


def read_fifo(scene: Scene) -> None:
    """Read what a server on this machine writes to a FIFO."""
    with _fifo(scene, scene.pause.left_s, "close").open("rb", buffering=0) as file:
        while file.read(_PIECE):
            pass


def read_fifo_until_it_stops(scene: Scene) -> None:
    """Read from a FIFO whose writer falls silent."""
    with _fifo(scene, TRICKLE_S, "silent").open("rb", buffering=0) as file:
        _move(scene, lambda: file.read(_PIECE))


def download(scene: Scene) -> None:
    """Download a file over HTTP from a slow server."""
    url = f"http://127.0.0.1:{scene.http_port}/weights/{scene.pause.left_s}"
    with urllib.request.urlopen(url) as response:
        while response.read(64):
            pass


def retry(scene: Scene) -> None:
    """Try again and again, with sleeps, to reach a server that is overloaded."""
    while scene.pause.is_active():
        with ask(scene, "refuse 0 close") as stream:
            stream.recv(_PIECE)
        time.sleep(_RETRY_S)


def ask(scene: Scene, what: str) -> socket.socket:
    """Return a connection to the slow server, after sending the request ``what`` (see ``servers.SlowServer``)."""
    stream = socket.create_connection(("127.0.0.1", scene.port))
    stream.sendall(f"{what}\n".encode())
    return stream


def _move(scene: Scene, piece: Callable[[], bytes]) -> None:
    while piece():
        scene.pause.moved()


def _fifo(scene: Scene, seconds: float, then: str) -> Path:
    path = scene.folder / f"fifo-{scene.rank}-{os.getpid()}"
    os.mkfifo(path)
    ask(scene, f"fifo {seconds} {then} {path}").close()
    return path
