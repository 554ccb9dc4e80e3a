import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed  # noqa: F401  the server is part of it

from holdfast_base import sockets
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.session.own_worker_server import ELASTIC_SOCKET, WorkerServer
from holdfast_proto.run_files import worker_server_socket


@pytest.fixture
def runtime() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:  # a short path, mode 0700
        yield Path(folder)


def server_in(runtime: Path, environment: dict[str, str] | None = None) -> WorkerServer:
    return WorkerServer(f"unix:{runtime / 'agent-a.sock'}", OnceLog(), environment or {})


@pytest.fixture
def server(runtime: Path) -> Iterator[WorkerServer]:
    server = server_in(runtime)
    yield server
    server.close()


def answers(path: str) -> sockets.Peer:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"POST /handler/ping HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
        assert b"pong" in b"".join(iter(lambda: client.recv(4096), b""))
        return sockets.peer(client)


def test_the_server_answers_on_a_private_socket_until_it_is_closed(server: WorkerServer, runtime: Path) -> None:
    assert server.path == ""
    server.start()
    server.start()
    assert server.path == str(worker_server_socket(runtime / "agent-a.sock", os.getpid()))
    assert stat.S_IMODE(Path(server.path).stat().st_mode) == 0o600
    assert answers(server.path) == sockets.Peer(os.getpid(), os.geteuid())
    path = server.path
    server.close()
    assert (server.path, Path(path).exists()) == ("", False)


def test_a_socket_that_a_dead_process_left_behind_is_replaced(server: WorkerServer, runtime: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(worker_server_socket(runtime / "agent-a.sock", os.getpid())))
    server.start()
    assert answers(server.path).pid == os.getpid()


def test_the_server_that_elastic_has_started_serves(runtime: Path) -> None:
    with socket.socket(socket.AF_UNIX) as elastic:
        elastic.bind(str(runtime / "elastic.sock"))
        server = server_in(runtime, {ELASTIC_SOCKET: str(runtime / "elastic.sock")})
        server.start()
        assert server.path == str(runtime / "elastic.sock")
        server.close()
        assert (runtime / "elastic.sock").exists()  # it is not ours to remove


def test_a_socket_of_elastic_that_nobody_serves_is_no_server(runtime: Path) -> None:
    server = server_in(runtime, {ELASTIC_SOCKET: str(runtime / "elastic.sock")})
    server.start()
    assert server.path == str(worker_server_socket(runtime / "agent-a.sock", os.getpid()))
    server.close()


@pytest.mark.parametrize("flaw", ["open", "long", "missing", "tcp"])
def test_without_a_fit_folder_there_is_no_server_and_one_line_says_why(
    flaw: str, runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = runtime / ("x" * 100 if flaw == "long" else "folder")
    if flaw != "missing":
        folder.mkdir(mode=0o755 if flaw == "open" else 0o700)
    server = server_in(folder)
    if flaw == "tcp":
        server = WorkerServer("dns:///somewhere:1", OnceLog(), {})
    server.start()
    server.start()
    assert server.path == ""
    (line,) = caplog.messages
    assert "torch's worker server does not run" in line
    assert "--runtime-directory" in line or flaw in ("missing", "tcp")


def test_a_process_that_the_rank_forks_leaves_the_server_alone(server: WorkerServer) -> None:
    server.start()
    child = os.fork()
    if child == 0:
        server.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert answers(server.path).pid == os.getpid()


@pytest.mark.system
def test_a_process_with_a_server_ends_as_usual(runtime: Path) -> None:
    code = f"""
import torch.distributed
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.session.own_worker_server import WorkerServer
server = WorkerServer("unix:{runtime}/agent-a.sock", OnceLog(), {{}})
server.start()
print(server.path)
server.close()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.startswith(f"{runtime}/worker-")
    assert list(runtime.iterdir()) == []
