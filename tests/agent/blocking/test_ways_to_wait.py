"""Real processes that wait in each of the ways that are named, seen from outside."""

import fcntl
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_agent.blocking.blocked_thread import LONGEST_S, look_at_rank
from holdfast_proto.v1 import common_pb2 as common
from tests.agent.evidence.test_gathering import may_look_into_processes
from tests.support.coroutines import wait_until
from tests.support.trees import Running, running

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not may_look_into_processes(), reason="the kernel hides other processes"),
]

HEAD = """
import fcntl, multiprocessing, os, select, selectors, shutil, socket, subprocess, sys, time
folder, port = sys.argv[1], int(sys.argv[2])
connect = lambda: socket.create_connection(("127.0.0.1", port))
held = open(f"{folder}/held")
def ready(): print("ready", flush=True)
def locked(): file = open(f"{folder}/own", "w"); fcntl.flock(file, 2); return file
def child(): process = multiprocessing.Process(target=time.sleep, args=(600,)); process.start(); return process
"""

LOCK = "lock futex - unspecified"
WAYS = {
    "flock": ("ready(); fcntl.flock(held, 2)", "file_lock flock {folder}/held foreign"),
    "lockf": (
        "file = open(f'{folder}/posix', 'r+'); ready(); fcntl.lockf(file, 2)",
        "file_lock fcntl {folder}/posix foreign",
    ),
    "own lock": (
        "file = locked(); again = open(file.name); ready(); fcntl.flock(again, 2)",
        "file_lock flock {folder}/own itself",
    ),
    "fifo": (
        "os.mkfifo(f'{folder}/fifo'); fifo = os.open(f'{folder}/fifo', os.O_RDWR); ready(); os.read(fifo, 1)",
        "pipe read {folder}/fifo itself",
    ),
    "open of a fifo": (
        "os.mkfifo(f'{folder}/new'); ready(); open(f'{folder}/new')",
        "pipe openat {folder}/new unspecified",
    ),
    "pipe from outside": ("ready(); input()", "pipe read - foreign"),
    "subprocess": ("ready(); subprocess.run(['sleep', '600'], capture_output=True)", "process poll - child"),
    "end of a child": (
        "process = subprocess.Popen(['sleep', '600']); ready(); process.wait()",
        "process wait4 - child",
    ),
    "worker": ("process = child(); ready(); process.join()", "process wait4 - child"),
    "worker with a limit": ("process = child(); ready(); process.join(500)", "process poll - child"),
    "queue": ("queue = multiprocessing.Queue(); process = child(); ready(); queue.get()", "process read - child"),
    "compiler": (
        "shutil.copy(shutil.which('sleep'), f'{folder}/cc1plus'); ready(); os.system(f'{folder}/cc1plus 600; true')",
        "compiler wait4 - child",
    ),
    "connection": ("own = connect(); ready(); own.recv(1)", "socket recvfrom - foreign 127.0.0.1:{port}"),
    "connection with a limit": (
        "own = connect(); own.settimeout(500); ready(); own.recv(1)",
        "socket poll - foreign 127.0.0.1:{port}",
    ),
    "select": ("own = connect(); ready(); select.select([own], [], [])", "socket select - foreign 127.0.0.1:{port}"),
    "epoll": (
        "own = connect(); chosen = selectors.DefaultSelector(); chosen.register(own, 1); ready(); chosen.select()",
        "socket epoll_wait - foreign 127.0.0.1:{port}",
    ),
    "unix socket": ("one, other = socket.socketpair(); ready(); one.recv(1)", "socket recvfrom - itself"),
    "peers": (
        "server = socket.create_server(('127.0.0.1', 0)); ready(); server.accept()",
        "unspecified accept - unspecified",
    ),
    "lock": ("import threading; lock = threading.Lock(); lock.acquire(); ready(); lock.acquire()", LOCK),
    "lock with a limit": (
        "import threading; lock = threading.Lock(); lock.acquire(); ready(); lock.acquire(timeout=500)",
        LOCK,
    ),
    "queue of threads": ("import queue; ready(); queue.Queue().get()", LOCK),
    "simple queue": ("import queue; ready(); queue.SimpleQueue().get()", LOCK),
    "sleep": ("ready(); time.sleep(600)", "sleep nanosleep - unspecified"),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[socket.socket]:
    """A server of this process, which accepts in the background of the kernel; this process holds two locks as well."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        (tmp_path / "held").open("w") as held,
        (tmp_path / "posix").open("w") as posix,
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.lockf(posix, fcntl.LOCK_EX)
        yield server


def seen(blocked: common.BlockedOn | None) -> str:
    if blocked is None:
        return ""
    activity = common.Activity.Name(blocked.activity).removeprefix("ACTIVITY_").lower()
    party = common.Party.Name(blocked.party).removeprefix("PARTY_").lower()
    return f"{activity} {blocked.call} {blocked.path or '-'} {party} {blocked.peer}".rstrip()


def look(rank: Running, store_port: int = 0) -> common.BlockedOn | None:
    return look_at_rank(rank.pid, {rank.pid: 0}, store_port=store_port, computes_on_cpu=True).look()


@pytest.mark.parametrize("way", WAYS)
def test_what_a_process_waits_for_is_named(server: socket.socket, tmp_path: Path, way: str) -> None:
    code, expected = WAYS[way]
    port = server.getsockname()[1]
    with running(HEAD + code, str(tmp_path), str(port)) as rank:
        accepted = server.accept()[0] if "connect()" in code else None
        expected = expected.format(folder=tmp_path, port=port)
        wait_until(lambda: seen(look(rank)) == expected, f"it is seen to wait: {expected}")
        if accepted is not None:
            accepted.close()


def test_a_connection_to_the_rendezvous_store_is_not_the_ranks_own_doing(server: socket.socket, tmp_path: Path) -> None:
    port = server.getsockname()[1]
    with running(f"{HEAD}own = connect(); ready(); own.recv(1)", str(tmp_path), str(port)) as rank:
        wait_until(
            lambda: seen(look(rank, port)) == f"unspecified recvfrom - store 127.0.0.1:{port}", "it waits for the store"
        )


def test_what_a_worker_is_blocked_on_is_named_with_it(server: socket.socket, tmp_path: Path) -> None:
    worker = "process = multiprocessing.Process(target=fcntl.flock, args=(held, 2)); process.start()"
    with running(f"{HEAD}{worker}; ready(); process.join()", str(tmp_path), "0") as rank:

        def after() -> str:
            found = look(rank)
            return "" if found is None else seen(found.next)

        wait_until(lambda: after() == f"file_lock flock {tmp_path}/held foreign", "the worker waits for the lock")


def test_a_look_is_short_and_traces_nothing(server: socket.socket, tmp_path: Path) -> None:
    code = f"{HEAD}process = child(); own, other = multiprocessing.Pipe(); other.close(); ready(); own.poll(600)"
    with running(code, str(tmp_path), "0") as rank:
        tracers: set[str] = set()
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.is_set():
                status = Path(f"/proc/{rank.pid}/status").read_text()
                tracers.update(line for line in status.splitlines() if line.startswith("TracerPid"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        began_s = time.monotonic()
        for _ in range(20):
            look(rank)
        took_s = time.monotonic() - began_s
        is_over.set()
        watcher.join()
        assert tracers == {"TracerPid:\t0"}
        assert took_s / 20 < 2 * LONGEST_S
