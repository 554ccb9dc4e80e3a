"""Asks the kernel about sockets over netlink (sock_diag(7))."""

import socket
import struct
from collections.abc import Iterator

SOCK_DIAG_BY_FAMILY = 20
"""Type of a request about sockets, and of each answer."""

HEADER = struct.Struct("=IHHII")
"""Length with this header, type, flags, sequence number and port of a message."""

_NETLINK_SOCK_DIAG = 4
_ATTRIBUTE = struct.Struct("=HH")


def connected(patience_s: float) -> socket.socket:
    """Return a socket to the kernel whose calls wait for ``patience_s`` at most. Raises OSError."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    netlink.settimeout(patience_s)
    return netlink


def send(netlink: socket.socket, query: bytes, flags: int) -> None:
    """Send a request. Raises OSError."""
    header = HEADER.pack(HEADER.size + len(query), SOCK_DIAG_BY_FAMILY, flags, 0, 0)
    netlink.sendto(header + query, (0, 0))


def attributes(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield kind and value of each attribute at the end of an answer; a cut one has a short value."""
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[max(_ATTRIBUTE.size, aligned(length)) :]


def aligned(length: int) -> int:
    """Return where the next message or attribute begins after one of this length."""
    return (length + 3) & ~3
