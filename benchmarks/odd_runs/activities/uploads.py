"""Pauses in which the rank sends to a slow server."""

import os
import socket
import sys

from benchmarks.odd_runs.scene import Scene

from .network import TRICKLE_S, ask

_SMALL_BUFFER = 4096
_LINE = "step 17: loss 0.123456, gradient norm 1.23456, 12345 tokens/s\n" * 8


def upload(scene: Scene) -> None:
    """Upload files to a server that takes a few bytes at a time, as ``wandb.finish`` does."""
    with _slow_upload(scene, scene.pause.left_s, "close") as stream:
        while scene.pause.is_active():
            stream.sendall(bytes(512))


def upload_until_it_stops(scene: Scene) -> None:
    """Upload to a server that stops reading after some seconds and keeps the connection open."""
    with _slow_upload(scene, TRICKLE_S, "silent") as stream:
        while True:
            stream.sendall(bytes(512))
            scene.pause.moved()


def print_much(scene: Scene) -> None:
    """Print more than the reader of the log takes, so that every write blocks for a while."""
    _print(scene, scene.pause.left_s, "close", log_moves=False)


def print_until_it_stops(scene: Scene) -> None:
    """Print to a reader that stops reading."""
    _print(scene, TRICKLE_S, "silent", log_moves=True)


def _print(scene: Scene, seconds: float, then: str, *, log_moves: bool) -> None:
    usual = os.dup(1)
    with _slow_upload(scene, seconds, then) as stream:
        os.dup2(stream.fileno(), 1)
        try:
            while scene.pause.is_active():
                sys.stdout.write(_LINE)
                sys.stdout.flush()
                if log_moves:
                    scene.pause.moved()
        finally:
            os.dup2(usual, 1)
            os.close(usual)


def _slow_upload(scene: Scene, seconds: float, then: str) -> socket.socket:
    stream = ask(scene, f"take {seconds} {then}")
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL_BUFFER)
    return stream
