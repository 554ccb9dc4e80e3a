"""Reads the byte counters and addresses of all TCP sockets of this network namespace."""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast_agent.movement import sock_diag

LISTEN = 10

_REQUEST_DUMP = 0x301
_MESSAGE_ERROR, _MESSAGE_DONE = 2, 3
_TCP_INFO = 2
_SYN_RECEIVED, _TIME_WAIT, _NEW_SYN_RECEIVED = 3, 6, 12
_STATES = 0xFFF & ~(1 << _SYN_RECEIVED | 1 << _TIME_WAIT | 1 << _NEW_SYN_RECEIVED)
"""Bit mask of the states that are asked for. No process holds a descriptor of a socket in one of the other states."""

_REQUEST = struct.Struct("=BBBxI48x")
_SOCKET = struct.Struct("=BBBB")
_PORTS = struct.Struct("!HH")
_QUEUES = struct.Struct("=IIII")
_BYTES = struct.Struct("=QQ")

_PORTS_AT, _LOCAL_AT, _REMOTE_AT, _QUEUES_AT, _ATTRIBUTES_AT = 4, 8, 24, 56, 72
_BYTES_AT = 120
"""Offset of bytes_acked and bytes_received in struct tcp_info (Linux 4.1 and later)."""

_RECEIVE_BYTES = 1 << 18
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """State and counters of one socket."""

    state: int
    local_port: int
    remote_port: int
    receive_queue: int
    """Bytes that the process has not read yet."""
    send_queue: int
    """Bytes that the peer has not acknowledged yet."""
    acknowledged: int
    """Bytes sent so far that the peer has acknowledged."""
    received: int
    """Bytes received so far."""
    local: bytes = b""
    """Its address: 4 or 16 bytes."""
    remote: bytes = b""
    """Address of its peer."""


def read_sockets() -> dict[int, TcpSocket]:
    """Return the TCP sockets of this network namespace by inode. Raises OSError if the kernel refuses."""
    found: dict[int, TcpSocket] = {}
    with sock_diag.connected(_PATIENCE_S) as netlink:
        for family in (socket.AF_INET, socket.AF_INET6):
            query = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), _STATES)
            sock_diag.send(netlink, query, _REQUEST_DUMP)
            for message in _messages(netlink):
                parsed = parse_socket(message)
                if parsed is not None:
                    found[parsed[0]] = parsed[1]
    return found


def _messages(netlink: socket.socket) -> Iterator[memoryview]:
    """Yield the bodies of one answer. Raises OSError if the kernel refuses."""
    while True:
        data = memoryview(netlink.recv(_RECEIVE_BYTES))
        while len(data) >= sock_diag.HEADER.size:
            length, kind, _, _, _ = sock_diag.HEADER.unpack_from(data)
            body = data[sock_diag.HEADER.size : length]
            if kind == _MESSAGE_DONE:
                return
            if kind == _MESSAGE_ERROR:
                raise OSError(-struct.unpack_from("=i", body)[0], "the kernel lists no TCP sockets")
            if length < sock_diag.HEADER.size:
                raise OSError("the kernel's list of TCP sockets is garbage")
            yield body
            data = data[sock_diag.aligned(length) :]


def parse_socket(body: bytes | memoryview) -> tuple[int, TcpSocket] | None:
    """Return the inode and the counters of one ``struct inet_diag_msg``.

    Return None if no process holds the socket, or if the message is garbage. A listening socket has no byte counters.
    """
    if len(body) < _ATTRIBUTES_AT:
        return None
    family, state, _, _ = _SOCKET.unpack_from(body)
    size = 4 if family == socket.AF_INET else 16
    local, remote = bytes(body[_LOCAL_AT : _LOCAL_AT + size]), bytes(body[_REMOTE_AT : _REMOTE_AT + size])
    local_port, remote_port = _PORTS.unpack_from(body, _PORTS_AT)
    receive_queue, send_queue, _, inode = _QUEUES.unpack_from(body, _QUEUES_AT)
    if not inode:
        return None
    acknowledged, received = _byte_counters(memoryview(body)[_ATTRIBUTES_AT:])
    queues = receive_queue, send_queue
    return inode, TcpSocket(state, local_port, remote_port, *queues, acknowledged, received, local, remote)


def _byte_counters(attributes: memoryview) -> tuple[int, int]:
    for kind, value in sock_diag.attributes(attributes):
        if kind == _TCP_INFO and len(value) >= _BYTES_AT + _BYTES.size:
            acknowledged, received = _BYTES.unpack_from(value, _BYTES_AT)
            return acknowledged, received
    return 0, 0
