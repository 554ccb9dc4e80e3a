"""The slow servers around odd runs: they trickle, refuse and fall silent as requested."""

import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.odd_runs.activities import ACTIVITIES
from benchmarks.odd_runs.pause import Pause, PauseLog, read_pauses
from benchmarks.odd_runs.scene import FOLDER, HTTP_PORT, PORT, Scene
from benchmarks.odd_runs.servers import SlowWorld

LASTS_S = 0.4
LIGHT = (
    "sleep",
    "sleep with the interpreter lock",
    "wait for a person",
    "sleep in a child",
    "loop",
    "thread pool",
    "lock",
    "sum",
    "save",
    "small files",
    "reread",
    "read",
    "read a fifo",
    "download",
    "retry",
    "upload",
    "print",
)


@pytest.fixture
def world() -> Iterator[SlowWorld]:
    with SlowWorld() as world:
        yield world


def asked(world: SlowWorld, what: str) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", world.port), timeout=5.0)
    stream.sendall(f"{what}\n".encode())
    return stream


def test_a_server_sends_for_a_while_and_closes(world: SlowWorld) -> None:
    began_s, received = time.monotonic(), 0
    with asked(world, f"send {LASTS_S} close") as stream:
        while piece := stream.recv(4096):
            received += len(piece)
    assert received >= 2 * 64
    assert time.monotonic() - began_s >= LASTS_S


def test_a_server_falls_silent_and_keeps_the_connection(world: SlowWorld) -> None:
    with asked(world, f"send {LASTS_S} silent") as stream:
        stream.settimeout(2.0)
        assert stream.recv(4096)
        with pytest.raises(TimeoutError):
            while stream.recv(4096):
                pass


def test_a_server_that_takes_no_more_blocks_its_client(world: SlowWorld) -> None:
    with asked(world, "take 0 silent") as stream:
        stream.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while True:
                stream.sendall(bytes(1 << 16))


def test_an_overloaded_server_says_so(world: SlowWorld) -> None:
    with asked(world, "refuse 0 close") as stream:
        assert stream.recv(4096) == b"503 overloaded\n"


def test_files_are_served_slowly_over_http(world: SlowWorld) -> None:
    began_s = time.monotonic()
    with urllib.request.urlopen(f"http://127.0.0.1:{world.http_port}/weights/{LASTS_S}", timeout=5.0) as response:
        assert response.read()
    assert time.monotonic() - began_s >= LASTS_S


@pytest.mark.parametrize("name", LIGHT)
def test_an_activity_ends_when_its_pause_does(
    name: str, world: SlowWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in ((FOLDER, str(tmp_path)), (PORT, str(world.port)), (HTTP_PORT, str(world.http_port))):
        monkeypatch.setenv(variable, value)
    with Pause(PauseLog(tmp_path, rank=1, generation=2), lasts_s=LASTS_S, endless=False) as pause:
        ACTIVITIES[name](Scene(1, pause))
    (logged,) = read_pauses(tmp_path)
    assert (logged.rank, logged.generation) == (1, 2)
    assert logged.ended_s is not None
    assert logged.ended_s - logged.began_s >= LASTS_S - 0.05


def test_the_pause_of_a_twin_never_ends(tmp_path: Path) -> None:
    with Pause(PauseLog(tmp_path, rank=0, generation=1), lasts_s=0.0, endless=True) as pause:
        assert pause.is_active()
        assert pause.left_s == float("inf")
        pause.moved()
        (logged,) = read_pauses(tmp_path)
    assert logged.ended_s is None
    (moved_s,) = logged.moves_s
    assert moved_s >= logged.began_s
