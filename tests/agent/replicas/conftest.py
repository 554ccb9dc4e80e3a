"""Nodes with replica stores, which serve them on the loopback interface."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast_agent.replicas.replica_client import fetch, send
from holdfast_agent.replicas.replica_server import ReplicaServer
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_checkpoint.format.shard_index import ShardIndex, shard_path
from holdfast_checkpoint.format.slot_shard import read_replica, write_replica
from holdfast_checkpoint.store.object_store import Bandwidth
from holdfast_proto.run_key import Seal
from tests.checkpoint.conftest import contents
from tests.support.snapshots import RUN, Snapshots

SEAL = Seal(b"key of the run")
WORLD = 4


def tensors(rank: int, step: int) -> dict[str, bytes]:
    return {
        "frozen": random.Random(rank).randbytes(3 << 20),
        "noise": random.Random(1000 * rank + step).randbytes(5000),
        "nothing": b"",
    }


class Node:
    """A node with a replica store. Its ranks leave snapshots in it."""

    def __init__(self, shm: Path, snapshots: Snapshots) -> None:
        shm.mkdir()
        self.shm = shm
        self.snapshots = snapshots
        self.root = shm / "holdfast-run@node" / "replicas"
        self.store = ReplicaStore(self.root, shm, RUN)

    def write(self, rank: int, step: int, *, base: int | None = None, generation: int = 1) -> ShardIndex:
        """Write a shard as a worker does, without a word to the store."""
        slot = self.snapshots.slot(rank, step, tensors=tensors(rank, step), generation=generation)
        try:
            return write_replica(slot, self.store.directory(step), run=RUN, world_size=WORLD, base_step=base)
        finally:
            slot.unlink()

    def save(self, rank: int, step: int, *, base: int | None = None, generation: int = 1) -> ShardIndex:
        """Write a shard and note it."""
        index = self.write(rank, step, base=base, generation=generation)
        assert self.store.note(index)
        return index

    def held(self) -> dict[tuple[int, int], list[int]]:
        """Return what the store reports: step and generation -> ranks."""
        return {(one.step, one.generation): list(one.ranks) for one in self.store.held()}

    def files(self) -> list[str]:
        """Return all files of the store, once what is dropped is removed."""
        self.store._remover.submit(int).result()
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())

    def steps(self) -> list[int]:
        """Return the steps whose folders have files, and check that nothing else is there."""
        names = {Path(name).parts[0] for name in self.files()}
        return sorted(int(name.removeprefix("step-")) for name in names)

    def shard(self, rank: int, step: int) -> Path:
        return shard_path(self.store.directory(step), rank)

    def flip(self, rank: int, step: int) -> None:
        """Damage a shard on its place."""
        path = self.shard(rank, step)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def expect_state(self, rank: int, step: int) -> None:
        """Unpack a shard, and compare every byte."""
        index = self.store.find(rank, step)
        assert index is not None
        slot = self.snapshots.empty(index.slot_bytes)
        read_replica(self.store.directory(step), rank, slot, generation=9)
        assert contents(slot) == tensors(rank, step)
        slot.unlink()

    def send(self, port: int, rank: int, step: int, *, seal: Seal = SEAL, bandwidth: Bandwidth | None = None) -> int:
        limit = bandwidth or Bandwidth()
        return send(f"127.0.0.1:{port}", seal, self.store, rank, step, bandwidth=limit, stop=threading.Event())

    def fetch(self, port: int, rank: int, step: int, *, generation: int = 1) -> None:
        fetch(f"127.0.0.1:{port}", SEAL, self.store, rank, step, generation=generation)


@pytest.fixture
def new_node(tmp_path: Path, snapshots: Snapshots) -> Callable[[str], Node]:
    return lambda name: Node(tmp_path / name, snapshots)


@pytest.fixture
def node(new_node: Callable[[str], Node]) -> Node:
    return new_node("node")


@pytest.fixture
def partner(new_node: Callable[[str], Node]) -> Node:
    return new_node("partner")


@pytest.fixture
def port(partner: Node) -> Iterator[int]:
    """The port on which the partner serves."""
    server = ReplicaServer(partner.store, SEAL, "127.0.0.1")
    yield server.port
    server.close()


class Proxy:
    """Forwards connections to a port, records what passes, and flips a byte if it is asked to."""

    def __init__(self, port: int, *, flip_from_client: int = -1, flip_from_server: int = -1) -> None:
        self.from_client, self.from_server = bytearray(), bytearray()
        self._to = port
        self._flips = flip_from_client, flip_from_server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._to))
                for ends in ((client, server, self.from_client, self._flips[0]),
                             (server, client, self.from_server, self._flips[1])):  # fmt: skip
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket, record: bytearray, flip: int) -> None:
        with suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if len(record) <= flip < len(record) + len(data):
                    data[flip - len(record)] ^= 1
                record += data
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
