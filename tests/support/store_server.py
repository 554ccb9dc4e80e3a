"""A Redis-compatible server for tests. It forgets everything when it is killed.

A conftest imports the fixtures ``store_process`` and ``store_server``.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from holdfast_base.redis_client import connect
from holdfast_cli.local_run.redis_server import answers, find_server
from holdfast_daemon.clock import Clock
from tests.support.coroutines import wait_until


class StoreServer:
    """One server on a unix socket."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.socket = directory / "store.sock"
        self.url = f"unix://{self.socket}"
        self.clock = Clock()
        """Clock of the daemons and agents that use the server."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, empty, and wait until it answers."""
        options = {"port": "0", "unixsocket": str(self.socket), "dir": str(self._directory), "save": ""}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([str(find_server()), *words], stdout=subprocess.DEVNULL)
        wait_until(lambda: answers(self.url), "the server answers")

    def kill(self) -> None:
        """End the server as a crash would: all its data is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.socket.unlink(missing_ok=True)

    def make_ready(self) -> None:
        """Make sure that the server runs and is empty."""
        if self._process is None:
            self.start()
        with self.client() as client:
            client.execute_command("FLUSHALL")

    def connect(self) -> redis.asyncio.Redis:
        """Return a client for a loop."""
        return connect(self.url)

    def client(self) -> redis.Redis:
        """Return a blocking client."""
        return redis.Redis.from_url(self.url)


@pytest.fixture(scope="session")
def store_process() -> Iterator[StoreServer]:
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        server = StoreServer(Path(name))
        yield server
        server.kill()


@pytest.fixture
def store_server(store_process: StoreServer) -> StoreServer:
    """A server that runs and is empty."""
    store_process.make_ready()
    return store_process
