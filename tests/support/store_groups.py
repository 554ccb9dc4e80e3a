"""Servers that replace each other, or share the data: one store behind sentinels, and a cluster."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from holdfast_base.redis_client import connect, connect_blocking
from holdfast_cli.local_run.redis_server import answers, find_server
from holdfast_daemon.clock import Clock
from tests.support.coroutines import wait_until

HOST = "127.0.0.1"
SERVICE = "runs"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as asked:
        asked.bind((HOST, 0))
        port: int = asked.getsockname()[1]
    return port


class StoreGroup:
    """Some servers, and the URL by which Holdfast uses them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.clock = Clock()
        self.url = ""

    def start(self, *arguments: str, **settings: str) -> int:
        """Start a server on a port of its own; return the port once it answers."""
        port = free_port()
        own = {"port": str(port), "bind": HOST, "dir": str(self._directory), **settings}
        words = [word for name, value in own.items() for word in (f"--{name.replace('_', '-')}", *value.split(" "))]
        log = self._directory / f"{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen([str(find_server()), *arguments, *words], stdout=output, stderr=output)
        self._processes[port] = process
        wait_until(lambda: answers(f"redis://{HOST}:{port}"), f"the server on port {port} answers: see {log}")
        return port

    def kill(self, port: int) -> None:
        """End one server as a crash would."""
        process = self._processes.pop(port)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End all servers."""
        for port in list(self._processes):
            self.kill(port)

    def connect(self) -> redis.asyncio.Redis:
        """Return a client for a loop, as daemons and agents have it."""
        return connect(self.url)

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """Yield a blocking client, as the command has it."""
        client = connect_blocking(self.url)
        try:
            yield client
        finally:
            client.close()


def ask(port: int, *words: str) -> Any:
    """Return what one server answers to a command."""
    with redis.Redis(host=HOST, port=port, decode_responses=True) as client:
        return client.execute_command(*words)


class SentinelGroup(StoreGroup):
    """A master, a replica, and a sentinel that puts the replica in the place of the master."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        quick = {"save": "", "repl_diskless_sync_delay": "0", "repl_ping_replica_period": "1"}
        self.master = self.start(**quick)
        self.replica = self.start(replicaof=f"{HOST} {self.master}", **quick)
        wait_until(lambda: ask(self.replica, "ROLE")[3] == "connected", "the replica follows")
        configuration = directory / "sentinel.conf"
        configuration.write_text(
            f"sentinel monitor {SERVICE} {HOST} {self.master} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 3000\n"
        )
        self.sentinel = self.start(str(configuration), "--sentinel")
        wait_until(lambda: ask(self.sentinel, "SENTINEL", "REPLICAS", SERVICE), "the sentinel knows the replica")
        dead = free_port()
        self.url = f"redis+sentinel://{HOST}:{dead},{HOST}:{self.sentinel}/{SERVICE}"

    def fail_over(self) -> None:
        """End the master, and wait until the replica has taken its place."""
        self.kill(self.master)
        wait_until(lambda: ask(self.replica, "ROLE")[0] == "master", "the replica is the master")

    def name_replica(self) -> None:
        """Have the sentinel name the replica as the master, while the old master does not know of it."""
        ask(self.replica, "REPLICAOF", "NO", "ONE")
        ask(self.sentinel, "SENTINEL", "REMOVE", SERVICE)
        ask(self.sentinel, "SENTINEL", "MONITOR", SERVICE, HOST, str(self.replica), "1")


class ClusterGroup(StoreGroup):
    """Three servers, each with a third of the slots."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._buses: dict[int, str] = {}
        """Port -> port on which the other servers reach this one."""
        ports = [self._shard(number) for number in range(3)]
        for number, port in enumerate(ports):
            first, last = 16384 * number // 3, 16384 * (number + 1) // 3 - 1
            ask(port, "CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
            ask(port, "CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for port in ports[1:]:
            ask(ports[0], "CLUSTER", "MEET", HOST, str(port), self._buses[port])
        for port in ports:
            wait_until(lambda port=port: "cluster_state:ok" in ask(port, "CLUSTER", "INFO"), "the cluster is whole")  # type: ignore[misc]
            wait_until(lambda port=port: len(ask(port, "CLUSTER", "SHARDS")) == 3, "all know all")  # type: ignore[misc]
        self.url = f"redis+cluster://{HOST}:{free_port()},{HOST}:{ports[1]}"

    def _shard(self, number: int) -> int:
        bus = str(free_port())
        port = self.start(save="", cluster_enabled="yes", cluster_port=bus, cluster_config_file=f"nodes-{number}.conf")
        self._buses[port] = bus
        return port
