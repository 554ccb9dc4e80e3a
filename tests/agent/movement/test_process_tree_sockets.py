"""Movement that TCP sockets of real processes show, without the connections to the rendezvous store."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast_agent.movement.tree_movement import NETWORK
from tests.support.trees import Tree, running

pytestmark = pytest.mark.system

TRICKLES = """
import socket, sys, threading, time
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def send():
    while True:
        peer.sendall(bytes(75))
        time.sleep(0.25)
threading.Thread(target=send).start()
print('ready', flush=True)
threading.Event().wait()
"""


@contextmanager
def _sink() -> Iterator[int]:
    """Port of a server that discards what it receives."""

    def swallow() -> None:
        with server, server.accept()[0] as peer:
            while peer.recv(1 << 16):
                pass

    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    thread = threading.Thread(target=swallow)
    thread.start()
    yield port
    thread.join()


def test_an_upload_that_trickles_moves() -> None:
    with _sink() as port, running(TRICKLES, str(port)) as process:
        Tree(process.pid).wait_for_moves(NETWORK)


def test_connections_to_the_rendezvous_store_do_not_count() -> None:
    with _sink() as port, running(TRICKLES, str(port)) as process:
        Tree(process.pid, store_port=port).wait_for_stillness()


def test_a_rank_that_hosts_the_rendezvous_store_itself_is_still_while_others_poll_it() -> None:
    code = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
threading.Event().wait()
"""
    with running(code) as process:
        port = int(process.said)
        with socket.create_connection(("127.0.0.1", port)) as peer, _sending(peer):
            Tree(process.pid).wait_for_moves(NETWORK)
            Tree(process.pid, store_port=port).wait_for_stillness()


def test_torchs_own_server_of_the_store_is_no_work_of_the_rank() -> None:
    code = """
import threading, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
def poll():
    while True:
        store.check(["no such key"])
        time.sleep(0.1)
threading.Thread(target=poll).start()
print(store.port, flush=True)
threading.Event().wait()
"""
    with running(code) as process:
        Tree(process.pid, store_port=int(process.said)).wait_for_stillness()


@contextmanager
def _sending(peer: socket.socket) -> Iterator[None]:
    """Send a few bytes a second that nobody reads, so that they stay in a queue."""
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(0.1):
            peer.sendall(b"poll")

    thread = threading.Thread(target=send)
    thread.start()
    yield
    ended.set()
    thread.join()
