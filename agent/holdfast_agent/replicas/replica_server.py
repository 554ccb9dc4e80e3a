"""Takes replica snapshots from other nodes, and gives them what this node holds.

It runs in threads of the agent, with low priority. Reading, sending and comparing digests leave Python's global lock
free.
"""

import logging
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from holdfast_agent.replicas.replica_exchange import (
    PeerEndedError,
    ReplicaError,
    ReplicaWire,
    announced_index,
    file_message,
)
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_base.processes import lower_priority
from holdfast_base.sockets import listen
from holdfast_base.text import reason_of
from holdfast_checkpoint.format.durable import NewFile
from holdfast_proto.run_key import Seal
from holdfast_proto.v1.replica_pb2 import ReplicaAnswer, ReplicaFile, ReplicaRequest, WantedReplica

_log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 4
"""Most connections that are served at once. Others have greeted, and wait for their answer until one ends."""
_MOST_STRANGERS = 32
"""Most connections at once that have not shown the run's key yet. They must not keep out those that have it."""
_BACKLOG = 64
_PAUSE_S = 1.0
"""Time until the next try if this process is out of descriptors or threads."""
_CLOSE_S = 2.0
"""Longest wait for the end of a connection. One that compares digests does not look up."""
_LINE_CHARACTERS = 1000
"""Longest line of a problem."""
_MOST_LINES = 100
"""Most different lines in the log about connections that failed."""


class ReplicaServer:
    """Serves ``store`` to nodes that have the run's key."""

    def __init__(self, store: ReplicaStore, seal: Seal, host: str, port: int = 0) -> None:
        """Begin to serve. With port 0 the kernel chooses a free one. Raises OSError."""
        self._store = store
        self._seal = seal
        self._stop = threading.Event()
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._logged: set[str] = set()
        self._listener = listen(host, port, _BACKLOG)
        self._listener.setblocking(True)  # it is one thread's own
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="replica-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections, and end the present ones. It takes a second or two, and nothing again."""
        if self._stop.is_set():
            return
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # this wakes accept()
        self._thread.join()
        self._listener.close()
        deadline_s = time.monotonic() + _CLOSE_S
        for _ in range(_MOST_CONNECTIONS):
            self._free.acquire(timeout=max(0.0, deadline_s - time.monotonic()))

    def _accept(self) -> None:
        lower_priority()
        while not self._stop.is_set():
            self._strangers.acquire()
            try:
                connection, (host, *_) = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection, host), name="replica", daemon=True).start()
            except (OSError, RuntimeError):
                self._strangers.release()
                self._stop.wait(_PAUSE_S)

    def _serve(self, connection: socket.socket, host: str) -> None:
        lower_priority()
        try:
            with ReplicaWire(connection, self._seal, host, is_server=True, stop=self._stop) as wire:
                try:
                    wire.greet()
                finally:
                    self._strangers.release()
                with self._free:
                    while True:
                        self._answer(wire, wire.receive(ReplicaRequest))
        except PeerEndedError:
            pass  # it has all that it wanted
        except ReplicaError as error:
            if not self._stop.is_set():
                self._log(f"a connection for replica snapshots has failed: {error}")
        except Exception:  # noqa: BLE001 - one connection must not end the others
            _log.exception("a connection for replica snapshots has failed")

    def _log(self, line: str) -> None:
        """Log a line once: a scanner of ports may come again and again."""
        if line not in self._logged and len(self._logged) < _MOST_LINES:
            self._logged.add(line)
            _log.warning("%s", line)

    def _answer(self, wire: ReplicaWire, request: ReplicaRequest) -> None:
        if request.HasField("put"):
            self._take(wire, request.put)
        elif request.HasField("get"):
            self._give(wire, request.get)
        else:
            wire.send(ReplicaAnswer(problem="this version does not know the request"))

    def _take(self, wire: ReplicaWire, file: ReplicaFile) -> None:
        pieces: Iterable[memoryview] = ()

        def fill(new: NewFile) -> None:
            nonlocal pieces
            wire.send(ReplicaAnswer())
            pieces = wire.receive_pieces(index.shard_bytes)
            for piece in pieces:
                new.write(piece)

        try:
            index = announced_index(file, self._store.run)
            if self._store.has(index):
                wire.send(ReplicaAnswer(held=True))
                return
            if index.base is not None and not self._store.has_base(index):
                wire.send(ReplicaAnswer(missing_base=index.base.step))
                return
            self._store.add(index, fill)
        except ReplicaError as error:
            for _ in pieces:
                pass  # the other side reads no answer before it has sent everything
            wire.send(_problem(error))
        else:
            wire.send(ReplicaAnswer())

    def _give(self, wire: ReplicaWire, wanted: WantedReplica) -> None:
        with ExitStack() as opened:
            try:
                index = self._store.find(wanted.rank, wanted.step, wanted.generation)
                base = index and index.base and self._store.find(index.rank, index.base.step)
                if index is None or (base is None) != (index.base is None):
                    raise ReplicaError(f"the replica snapshot of rank {wanted.rank} and step {wanted.step} is not here")
                indexes = [base, index] if base else [index]
                files = [opened.enter_context(self._store.opened(each)) for each in indexes]
            except ReplicaError as error:
                wire.send(_problem(error))
                return
            wire.send(ReplicaAnswer(files=map(file_message, indexes)))
            for each, file in zip(indexes, files, strict=True):
                wire.send_file(file, each.shard_bytes)


def _problem(error: Exception) -> ReplicaAnswer:
    line = "".join(character if character.isprintable() else "?" for character in reason_of(error))
    return ReplicaAnswer(problem=line[:_LINE_CHARACTERS])
