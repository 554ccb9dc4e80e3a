"""The connection over which two agents exchange replica snapshots.

Each side begins with a magic number and random bytes. All messages are then frames: a length of four bytes, and a
message that is sealed with the run's key. The place of the seal holds the random bytes of both sides and the direction,
and frames are numbered. So nothing that was recorded can be sent again. The first frame of the client is empty: until
it has come, the server takes no more than a few bytes.

The bytes of shards follow their message without a seal. The sealed index has their digests.
"""

import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import sendfile
from typing import BinaryIO, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast_checkpoint.checkpoint_errors import CheckpointUnreadable
from holdfast_checkpoint.format.shard_index import ShardIndex
from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.checks.whole_rules import new_checker
from holdfast_proto.limits import MOST_RANKS
from holdfast_proto.run_key import ForgedError, Seal
from holdfast_proto.v1 import replica_pb2

PIECE_BYTES = 1 << 20
"""Bytes of a shard that are sent and received at a time."""
SILENCE_S = 60.0
"""Longest time for one piece, or one message."""
ANSWER_S = 600.0
"""Longest time until the other side has verified a shard. It does that with low priority."""

_MAGIC = b"HFREPL\x00\x01"
_RANDOM_BYTES = 32
_HANDSHAKE_S = 10.0
_LOOK_EVERY_S = 0.5
"""Time between two looks whether this side is to stop."""
_LENGTH_BYTES = 4
_MOST_FIRST_BYTES = 64
"""Most bytes of the first frame of a client, which need not know the key."""
_MOST_BYTES = 2 * (257 << 20)
"""Most bytes of a frame: that of an answer with two indexes."""

_TOS_LOWER_EFFORT = 1 << 2
"""DSCP 1: networks that know it serve all other traffic first (RFC 8622)."""
_KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}
"""Seconds, seconds and a number: a node that is gone is noticed within 35 s."""
_UNHEARD_MS = 35_000
"""The same for bytes that the other side has not confirmed: while there are any, the kernel sends no keepalives."""

_checker = new_checker(MOST_RANKS)

AnyMessage = TypeVar("AnyMessage", bound=Message)


class ReplicaError(Exception):
    """A replica snapshot could not be sent, fetched or stored. The message is one line for people."""


class PeerEndedError(ReplicaError):
    """The other side has closed the connection."""


class ReplicaWire:
    """One side of a connection, which it owns. A context manager.

    Every method raises ReplicaError. ``stop`` ends all waiting.
    """

    def __init__(
        self, connection: socket.socket, seal: Seal, peer: str, *, is_server: bool, stop: threading.Event | None = None
    ) -> None:
        self.peer = peer
        """Address of the other side, for messages."""
        self._connection = connection
        self._seal = seal
        self._stop = stop or threading.Event()
        self._is_server = is_server
        self._places = {True: "", False: ""}
        """Place of the seal of what the server sends (True), and of what the client sends."""
        self._sent = self._received = 0
        """Numbers of frames."""
        _tune(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def greet(self) -> None:
        """Exchange random bytes, and check that the client has the run's key."""
        ours = secrets.token_bytes(_RANDOM_BYTES)
        self._send_bytes(_MAGIC + ours, _HANDSHAKE_S)
        greeting = self._receive_bytes(len(_MAGIC) + _RANDOM_BYTES, _HANDSHAKE_S)
        if not greeting.startswith(_MAGIC):
            raise ReplicaError(f"{self.peer} is no agent that takes replica snapshots of this version")
        both = [ours, greeting[len(_MAGIC) :]]
        server, client = both if self._is_server else both[::-1]
        for is_from_server in self._places:
            direction = "server" if is_from_server else "client"
            self._places[is_from_server] = f"replica {server.hex()} {client.hex()} {direction}"
        if self._is_server:
            self._receive_frame(_HANDSHAKE_S, _MOST_FIRST_BYTES)
        else:
            self._send_frame(b"")

    def send(self, message: Message) -> None:
        """Send a message."""
        self._send_frame(message.SerializeToString())

    def receive(self, kind: type[AnyMessage], within_s: float = SILENCE_S) -> AnyMessage:
        """Return the next message. Raises PeerEndedError if the other side has closed the connection."""
        data = self._receive_frame(within_s, _MOST_BYTES)
        message = kind()
        try:
            message.ParseFromString(data)
            _checker.check(message)
        except (DecodeError, RefusedError) as error:
            raise ReplicaError(f"{self.peer} has sent a message that makes no sense: {error}") from error
        return message

    def receive_answer(self) -> replica_pb2.ReplicaAnswer:
        """Return the next answer. Raises ReplicaError also if it says why not."""
        answer = self.receive(replica_pb2.ReplicaAnswer, ANSWER_S)
        if answer.problem:
            raise ReplicaError(f"{self.peer}: {answer.problem}")
        return answer

    def send_file(self, file: BinaryIO, nbytes: int, pause: Callable[[int], object] = lambda _: None) -> None:
        """Send the first ``nbytes`` of a file. ``pause`` is called with the size of each piece before it is sent."""
        offset = 0
        while offset < nbytes:
            end = min(offset + PIECE_BYTES, nbytes)
            pause(end - offset)
            deadline_s = time.monotonic() + SILENCE_S
            while offset < end:
                offset += self._send_part(file, offset, end - offset, deadline_s)

    def _send_part(self, file: BinaryIO, offset: int, nbytes: int, deadline_s: float) -> int:
        count = self._do(
            lambda: sendfile(self._connection.fileno(), file.fileno(), offset, nbytes), select.POLLOUT, deadline_s
        )
        if not count:
            raise ReplicaError("the shard is shorter than its index says")
        return count

    def receive_pieces(self, nbytes: int) -> Iterator[memoryview]:
        """Yield the next ``nbytes`` in pieces. Each overwrites the one before."""
        buffer = memoryview(bytearray(min(PIECE_BYTES, nbytes)))
        while nbytes:
            piece = buffer[:nbytes]
            self._fill(piece, SILENCE_S)
            nbytes -= len(piece)
            yield piece

    def _send_frame(self, content: bytes) -> None:
        sealed = self._seal.close(self._places[self._is_server], content, self._sent)
        self._sent += 1
        self._send_bytes(len(sealed).to_bytes(_LENGTH_BYTES, "big"), SILENCE_S)
        self._send_bytes(sealed, SILENCE_S)

    def _receive_frame(self, within_s: float, most_bytes: int) -> bytes:
        nbytes = int.from_bytes(self._receive_bytes(_LENGTH_BYTES, within_s), "big")
        if nbytes > most_bytes:
            raise ReplicaError(f"{self.peer} has announced a message of {nbytes} bytes: {most_bytes} are the most")
        sealed = self._receive_bytes(nbytes, within_s)
        try:
            opened = self._seal.open(self._places[not self._is_server], sealed)
        except ForgedError as error:
            raise ReplicaError(f"a message of {self.peer} is refused: {error}") from None
        if opened.number != self._received:
            raise ReplicaError(f"{self.peer} has sent message {opened.number} in place of {self._received}")
        self._received += 1
        return opened.content

    def _send_bytes(self, data: bytes, within_s: float) -> None:
        view = memoryview(data)
        while view:
            piece, deadline_s = view[:PIECE_BYTES], time.monotonic() + within_s
            view = view[len(piece) :]
            while piece:
                count = self._do(lambda part=piece: self._connection.send(part), select.POLLOUT, deadline_s)  # type: ignore[misc]
                piece = piece[count:]

    def _receive_bytes(self, nbytes: int, within_s: float) -> bytes:
        # It grows with what comes: a length alone must cost no memory.
        data = bytearray()
        while len(data) < nbytes:
            piece = memoryview(bytearray(min(PIECE_BYTES, nbytes - len(data))))
            self._fill(piece, within_s)
            data += piece
        return bytes(data)

    def _fill(self, piece: memoryview, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while piece:
            count = self._do(lambda part=piece: self._connection.recv_into(part), select.POLLIN, deadline_s)  # type: ignore[misc]
            if not count:
                raise PeerEndedError(f"{self.peer} has closed the connection")
            piece = piece[count:]

    def _do(self, call: Callable[[], int], event: int, deadline_s: float) -> int:
        """Call once the socket is ready for it. Raises ReplicaError if it is not by the deadline."""
        while True:
            try:
                return call()
            except BlockingIOError:
                self._wait(event, deadline_s)
            except OSError as error:
                raise ReplicaError(f"{self.peer}: {error.strerror or error}") from error

    def _wait(self, event: int, deadline_s: float) -> None:
        poll = select.poll()
        poll.register(self._connection, event)
        while True:
            left_s = deadline_s - time.monotonic()
            if self._stop.is_set():
                raise ReplicaError(f"the exchange with {self.peer} was stopped")
            if left_s <= 0.0:
                raise ReplicaError(f"{self.peer} is silent")
            if poll.poll(min(left_s, _LOOK_EVERY_S) * 1000):
                return


def file_message(index: ShardIndex) -> replica_pb2.ReplicaFile:
    """Return the message that announces the bytes of a shard."""
    return replica_pb2.ReplicaFile(
        step=index.step, rank=index.rank, index=index.encode(), shard_bytes=index.shard_bytes
    )


def announced_index(file: replica_pb2.ReplicaFile, run: str) -> ShardIndex:
    """Return the index of a shard that the other side announces. Raises ReplicaError if it cannot be one of ``run``."""
    try:
        index = ShardIndex.decode(file.index)
    except (ValueError, CheckpointUnreadable) as error:
        raise ReplicaError(f"the index of a replica snapshot is refused: {error}") from error
    announced = (run, file.step, file.rank, file.shard_bytes)
    if announced != (index.run, index.step, index.rank, index.shard_bytes) or index.rank >= index.world_size:
        raise ReplicaError(
            f"the replica snapshot of rank {file.rank} and step {file.step} is refused: its index is of rank"
            f" {index.rank} of {index.world_size}, step {index.step} and run {index.run}"
        )
    if not all(tensor.is_stored for tensor in index.tensors) or (index.base and index.base.step >= index.step):
        raise ReplicaError(f"the shard of rank {file.rank} and step {file.step} is no replica snapshot")
    return index


def _tune(connection: socket.socket) -> None:
    connection.setblocking(False)
    is_v6 = connection.family == socket.AF_INET6
    marking = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if is_v6 else (socket.IPPROTO_IP, socket.IP_TOS)
    with suppress(OSError):  # it works without any of them
        connection.setsockopt(*marking, _TOS_LOWER_EFFORT)
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in {**_KEEPALIVE, socket.TCP_USER_TIMEOUT: _UNHEARD_MS}.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
