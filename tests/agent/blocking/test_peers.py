import os
import socket
from dataclasses import replace

from holdfast_agent.blocking.peers import other_end, parse_unix_peer, peer_name, unix_peer
from holdfast_agent.movement.tcp_counters import TcpSocket, read_sockets

V4, V4_IN_V6, V6 = bytes([127, 0, 0, 1]), bytes([*[0] * 10, 255, 255, 127, 0, 0, 1]), bytes([*[0] * 15, 1])
OWN = TcpSocket(1, 40000, 6379, 0, 0, 0, 0, V4, V4)
PEER = TcpSocket(1, 6379, 40000, 0, 0, 0, 0, V4_IN_V6, V4_IN_V6)


def test_both_ends_of_a_connection_on_one_machine_are_matched_by_ports_and_addresses() -> None:
    assert other_end(OWN, {1: OWN, 2: PEER}) == 2
    assert other_end(OWN, {1: OWN, 2: replace(PEER, remote=bytes([10, 0, 0, 1]))}) == 0
    assert other_end(OWN, {1: OWN}) == 0


def test_addresses_are_spelled_as_people_do() -> None:
    assert peer_name(OWN) == "127.0.0.1:6379"
    assert peer_name(replace(OWN, remote=V4_IN_V6)) == "127.0.0.1:6379"
    assert peer_name(replace(OWN, remote=V6)) == "[::1]:6379"
    assert peer_name(replace(OWN, remote=b"")) == ""


def test_the_kernel_shows_the_other_end_of_real_sockets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as own:
        peer, _ = server.accept()
        with peer:
            sockets = read_sockets()
            inode = os.fstat(own.fileno()).st_ino
            assert other_end(sockets[inode], sockets) == os.fstat(peer.fileno()).st_ino
            assert peer_name(sockets[inode]) == "{}:{}".format(*server.getsockname())
    one, other = socket.socketpair()
    with one, other:
        assert unix_peer(os.fstat(one.fileno()).st_ino) == os.fstat(other.fileno()).st_ino


def test_garbage_from_the_kernel_shows_no_peer() -> None:
    for data in (b"", bytes(16), bytes(200), b"\xff" * 200):
        assert parse_unix_peer(data, 5) == 0
