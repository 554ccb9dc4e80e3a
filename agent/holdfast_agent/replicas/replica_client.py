"""Sends the replica snapshots of this node to another one, and fetches what another one holds.

Both functions wait for the network. Call them in a thread.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator

from holdfast_agent.replicas.replica_exchange import ReplicaError, ReplicaWire, announced_index, file_message
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_checkpoint.format.durable import NewFile
from holdfast_checkpoint.format.shard_index import ShardIndex
from holdfast_checkpoint.store.object_store import Bandwidth
from holdfast_proto.run_key import Seal
from holdfast_proto.v1.replica_pb2 import ReplicaAnswer, ReplicaRequest, WantedReplica

_CONNECT_S = 10.0


def send(
    address: str,
    seal: Seal,
    store: ReplicaStore,
    rank: int,
    step: int,
    *,
    bandwidth: Bandwidth,
    stop: threading.Event,
) -> int:
    """Send a shard to the node at ``address``, and return the bytes that went out once it is verified there.

    If that node lacks what the shard builds on, this is sent first. Raises ReplicaError, also after ``stop`` is set.
    """

    sent_bytes = 0

    def pause(nbytes: int) -> None:
        nonlocal sent_bytes
        sent_bytes += nbytes
        if stop.wait(bandwidth.take_s(nbytes)):
            raise ReplicaError(f"the exchange with {address} was stopped")

    def put(index: ShardIndex) -> int | None:
        """Send a shard. Return the step of the one that is needed first."""
        with store.opened(index) as file:
            wire.send(ReplicaRequest(put=file_message(index)))
            answer = wire.receive_answer()
            if answer.HasField("missing_base"):
                return answer.missing_base
            if not answer.held:
                wire.send_file(file, index.shard_bytes, pause)
                wire.receive_answer()
        return None

    index = _find(store, rank, step)
    with _connected(address, seal, stop) as wire:
        if put(index) is None:
            return sent_bytes
        if index.base is not None:
            put(_find(store, rank, index.base.step))
        if put(index) is None:
            return sent_bytes
        raise ReplicaError(f"{address} lacks the base of the replica snapshot of rank {rank}, which it was sent")


def fetch(
    address: str,
    seal: Seal,
    store: ReplicaStore,
    rank: int,
    step: int,
    *,
    generation: int,
    stop: threading.Event | None = None,
) -> None:
    """Fetch a shard from the node at ``address``, and what it builds on, and store both.

    Raises ReplicaError, also after ``stop`` is set.
    """
    with _connected(address, seal, stop) as wire:
        wire.send(ReplicaRequest(get=WantedReplica(rank=rank, step=step, generation=generation)))
        answer = wire.receive_answer()
        indexes = _offered(answer, store.run, (rank, step, generation), address)
        for index in indexes:
            _take(wire, store, index)


def _find(store: ReplicaStore, rank: int, step: int) -> ShardIndex:
    index = store.find(rank, step)
    if index is None:
        raise ReplicaError(f"the replica snapshot of rank {rank} and step {step} is not here")
    return index


def _offered(answer: ReplicaAnswer, run: str, wanted: tuple[int, int, int], address: str) -> list[ShardIndex]:
    """Return the indexes of the shards that follow. Raises ReplicaError if they are not those that were asked for."""
    indexes = [announced_index(file, run) for file in answer.files]
    is_right = bool(indexes) and (indexes[-1].rank, indexes[-1].step, indexes[-1].generation) == wanted
    if is_right:
        base = indexes[-1].base
        steps = [] if base is None else [(wanted[0], base.step, base.index_digest)]
        is_right = steps == [(index.rank, index.step, index.digest) for index in indexes[:-1]]
    if not is_right:
        raise ReplicaError(f"{address} offers other replica snapshots than that of rank {wanted[0]}, step {wanted[1]}")
    return indexes


def _take(wire: ReplicaWire, store: ReplicaStore, index: ShardIndex) -> None:
    pieces = wire.receive_pieces(index.shard_bytes)

    def fill(new: NewFile) -> None:
        for piece in pieces:
            new.write(piece)

    if store.has(index):
        for _ in pieces:
            pass  # it comes all the same
        return
    store.add(index, fill)


@contextlib.contextmanager
def _connected(address: str, seal: Seal, stop: threading.Event | None) -> Iterator[ReplicaWire]:
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S)
    except (OSError, ValueError, OverflowError) as error:
        raise ReplicaError(f"{address} cannot be reached: {getattr(error, 'strerror', None) or error}") from error
    with ReplicaWire(connection, seal, address, is_server=False, stop=stop) as wire:
        wire.greet()
        yield wire
