import dataclasses
import socket
import threading
from contextlib import ExitStack, suppress

import pytest

from holdfast_agent.replicas import replica_server, replica_store
from holdfast_agent.replicas.replica_client import fetch, send
from holdfast_agent.replicas.replica_exchange import (
    PIECE_BYTES,
    PeerEndedError,
    ReplicaError,
    ReplicaWire,
    file_message,
)
from holdfast_agent.replicas.replica_server import ReplicaServer
from holdfast_agent.snapshots.memory_room import Room
from holdfast_checkpoint.format.shard_index import ShardIndex
from holdfast_checkpoint.store.object_store import Bandwidth
from holdfast_proto.run_key import Seal
from holdfast_proto.v1.replica_pb2 import ReplicaAnswer, ReplicaFile, ReplicaRequest, WantedReplica
from tests.agent.replicas.conftest import SEAL, Node, Proxy


class Unlimited(Bandwidth):
    """Counts what is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    def take_s(self, nbytes: int) -> float:
        self.taken.append(nbytes)
        return super().take_s(nbytes)


def ask(port: int, *requests: ReplicaRequest, seal: Seal = SEAL) -> list[ReplicaAnswer]:
    with ReplicaWire(socket.create_connection(("127.0.0.1", port)), seal, "partner", is_server=False) as wire:
        wire.greet()
        answers = []
        for request in requests:
            wire.send(request)
            answers.append(wire.receive(ReplicaAnswer))
        return answers


def test_shards_arrive_bit_for_bit_and_the_base_goes_first(node: Node, partner: Node, port: int) -> None:
    node.save(1, 10)
    index = node.save(1, 20, base=10)
    assert index.base is not None
    node.send(port, 1, 20)
    assert partner.held() == {(10, 1): [1], (20, 1): [1]}
    partner.expect_state(1, 20)
    assert partner.shard(1, 20).read_bytes() == node.shard(1, 20).read_bytes()
    assert partner.files() == node.files()


def test_shards_are_fetched_bit_for_bit_with_their_base(node: Node, partner: Node, port: int) -> None:
    partner.save(1, 10)
    partner.save(1, 20, base=10, generation=3)
    for _ in range(2):  # the second time it is all there
        node.fetch(port, 1, 20, generation=3)
        assert node.held() == {(10, 1): [1], (20, 3): [1]}
        node.expect_state(1, 20)
    with pytest.raises(ReplicaError, match="rank 1 and step 20 is not here"):
        node.fetch(port, 1, 20, generation=2)


def test_a_shard_that_is_there_costs_no_transfer(node: Node, port: int) -> None:
    node.save(0, 10)
    node.send(port, 0, 10)
    bandwidth = Unlimited()
    node.send(port, 0, 10, bandwidth=bandwidth)
    assert bandwidth.taken == []


def test_bytes_go_out_in_pieces_within_the_bandwidth(node: Node, partner: Node, port: int) -> None:
    index = node.save(0, 10)
    bandwidth = Unlimited()
    assert node.send(port, 0, 10, bandwidth=bandwidth) == index.shard_bytes
    assert sum(bandwidth.taken) == index.shard_bytes
    assert partner.store.held_bytes == index.shard_bytes
    assert bandwidth.taken[:3] == [PIECE_BYTES] * 3
    assert len(bandwidth.taken) == 4


def test_a_stopped_sender_leaves_nothing_behind(node: Node, partner: Node, port: int) -> None:
    node.save(0, 10)
    stop = threading.Event()

    class Stopping(Bandwidth):
        def take_s(self, nbytes: int) -> float:
            stop.set()
            return 3600.0

    with pytest.raises(ReplicaError, match="was stopped"):
        send(f"127.0.0.1:{port}", SEAL, node.store, 0, 10, bandwidth=Stopping(), stop=stop)
    node.send(port, 0, 10)
    assert partner.held() == {(10, 1): [0]}


def test_a_stopped_client_waits_for_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stop = threading.Event()
        stop.set()
        store = replica_store.ReplicaStore(None, None, "run")  # type: ignore[arg-type]
        with pytest.raises(ReplicaError, match="was stopped"):
            fetch(f"127.0.0.1:{silent.getsockname()[1]}", SEAL, store, 0, 10, generation=1, stop=stop)


@pytest.mark.parametrize("damaged", [10, 20])
def test_a_damaged_shard_is_never_given_and_no_longer_reported(
    damaged: int, node: Node, partner: Node, port: int
) -> None:
    partner.save(1, 10)
    partner.save(1, 20, base=10)
    partner.flip(1, damaged)
    with pytest.raises(ReplicaError, match=f"rank 1 and step {damaged} is dropped: .* does not match its digest"):
        node.fetch(port, 1, 20)
    assert node.held() == {}
    assert partner.held() == ({} if damaged == 10 else {(10, 1): [1]})


def test_a_damaged_shard_is_never_sent(node: Node, partner: Node, port: int) -> None:
    node.save(1, 10)
    node.flip(1, 10)
    with pytest.raises(ReplicaError, match="is dropped"):
        node.send(port, 1, 10)
    assert (node.held(), partner.held()) == ({}, {})


def test_a_byte_that_flips_on_the_way_is_refused_on_arrival(node: Node, partner: Node, port: int) -> None:
    index = node.save(1, 10)
    for position in (2000 + len(index.encode()), index.shard_bytes):
        with Proxy(port, flip_from_client=position) as proxy:
            with pytest.raises(ReplicaError, match=r"arrived damaged: .* does not match its digest"):
                node.send(proxy.port, 1, 10)
            assert (partner.held(), partner.files()) == ({}, [])
    node.send(port, 1, 10)
    other = Node(node.shm.parent / "other", node.snapshots)
    with (
        Proxy(port, flip_from_server=index.shard_bytes) as proxy,
        pytest.raises(ReplicaError, match="arrived damaged"),
    ):
        other.fetch(proxy.port, 1, 10)
    assert (other.held(), other.files()) == ({}, [])


@pytest.mark.parametrize("position", [3, 20, 42, 50, 90, 400])
def test_a_flipped_byte_of_a_message_is_refused(position: int, node: Node, partner: Node, port: int) -> None:
    node.save(1, 10)
    with Proxy(port, flip_from_client=position) as proxy, pytest.raises(ReplicaError):
        node.send(proxy.port, 1, 10)
    assert partner.held() == {}


def test_only_the_key_of_the_run_opens_the_server(node: Node, partner: Node, port: int) -> None:
    node.save(1, 10)
    with pytest.raises(ReplicaError, match=f"127.0.0.1:{port}"):
        node.send(port, 1, 10, seal=Seal(b"another key"))
    assert partner.held() == {}


def test_what_was_recorded_cannot_be_sent_again(node: Node, partner: Node, port: int) -> None:
    node.save(1, 10)
    with Proxy(port) as proxy:
        node.send(proxy.port, 1, 10)
    partner.store.drop_after(-1)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(proxy.from_client[:1000])
        with ReplicaWire(connection, SEAL, "server", is_server=False) as wire:
            assert len(wire._receive_bytes(40, 60.0)) == 40
            with pytest.raises(ReplicaError, match=r"closed|reset"):
                wire._receive_bytes(1, 60.0)
    assert partner.held() == {}

    with socket.create_server(("127.0.0.1", 0)) as forger:

        def replay() -> None:
            connection = forger.accept()[0]
            connection.sendall(proxy.from_server)
            with suppress(ConnectionResetError):
                while connection.recv(1 << 20):
                    pass

        threading.Thread(target=replay, daemon=True).start()
        with pytest.raises(ReplicaError, match="not signed with the run's key"):
            node.send(forger.getsockname()[1], 1, 10)


def test_absurd_sizes_are_refused_before_they_cost_memory(
    node: Node, partner: Node, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = node.save(1, 10)
    for has_key in (False, True):
        with ReplicaWire(socket.create_connection(("127.0.0.1", port)), SEAL, "partner", is_server=False) as wire:
            if has_key:
                wire.greet()
            else:
                wire._send_bytes(b"HFREPL\x00\x01" + bytes(32), 60.0)
                wire._receive_bytes(40, 60.0)
            wire._send_bytes(b"\xff" * 4, 60.0)
            with pytest.raises(PeerEndedError):
                wire._receive_bytes(1, 60.0)
    huge = dataclasses.replace(index, shard_bytes=1 << 50)
    answers = ask(port, ReplicaRequest(put=file_message(huge)), ReplicaRequest(put=file_message(huge)))
    assert all(f"no room for a replica snapshot of {1 << 50} bytes" in answer.problem for answer in answers)

    monkeypatch.setattr(replica_store, "memory_room", lambda _: Room(0, "/dev/shm", "set --shm-directory"))
    with pytest.raises(ReplicaError, match=rf"no room for .* {index.shard_bytes} bytes: /dev/shm has 0 .*--shm-dir"):
        node.send(port, 1, 10)
    assert (partner.held(), partner.files()) == ({}, [])


def test_one_that_comes_while_all_others_are_served_waits_for_its_answer(node: Node, partner: Node, port: int) -> None:
    """A node with many ranks fetches all their shards at once, and each may take minutes."""
    partner.save(1, 10)
    with ExitStack() as others:
        for _ in range(replica_server._MOST_CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", port))
            others.enter_context(ReplicaWire(connection, SEAL, "partner", is_server=False)).greet()
        with ReplicaWire(socket.create_connection(("127.0.0.1", port)), SEAL, "partner", is_server=False) as wire:
            wire.greet()
            wire.send(ReplicaRequest(get=WantedReplica(rank=1, step=10, generation=1)))
            others.close()
            assert [file.rank for file in wire.receive(ReplicaAnswer).files] == [1]


def test_strangers_that_say_nothing_keep_nobody_out(port: int) -> None:
    with ExitStack() as strangers:
        for _ in range(3 * replica_server._MOST_CONNECTIONS):
            strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert "does not know the request" in ask(port, ReplicaRequest())[0].problem


def altered(of: ShardIndex, **fields: object) -> ReplicaFile:
    file = file_message(of)
    for name, value in fields.items():
        setattr(file, name, value)
    return file


def test_announcements_that_make_no_sense_are_refused(node: Node, partner: Node, port: int) -> None:
    index = node.save(1, 10)
    files = {
        altered(index, rank=2).SerializeToString(): "its index is of rank 1 of 4, step 10",
        altered(index, step=11).SerializeToString(): "its index is of rank 1 of 4, step 10",
        altered(index, shard_bytes=1).SerializeToString(): "is refused",
        altered(index, index=b"{}").SerializeToString(): "index of a replica snapshot is refused",
        file_message(dataclasses.replace(index, run="other")).SerializeToString(): "and run other",
        file_message(dataclasses.replace(index, world_size=1)).SerializeToString(): "of rank 1 of 1",
    }
    answers = ask(port, *(ReplicaRequest(put=ReplicaFile.FromString(file)) for file in files), ReplicaRequest())
    for answer, problem in zip(answers, [*files.values(), "does not know the request"], strict=True):
        assert problem in answer.problem
    assert partner.held() == {}


def test_a_server_that_closes_ends_its_connections(partner: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_server, "_CLOSE_S", 3600.0)
    server = ReplicaServer(partner.store, SEAL, "127.0.0.1")
    address = ("127.0.0.1", server.port)
    with ReplicaWire(socket.create_connection(address), SEAL, "partner", is_server=False) as wire:
        wire.greet()
        server.close()
        with pytest.raises(ReplicaError):
            wire.receive(ReplicaAnswer)
    server.close()  # again: there is nothing to wait for
    with pytest.raises(ReplicaError, match="cannot be reached: Connection refused"):
        partner.fetch(server.port, 0, 1)
