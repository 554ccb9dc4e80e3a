"""Finds the other end of a connection: the peer of a TCP socket, and that of a unix socket (sock_diag(7))."""

import ipaddress
import socket
import struct
from collections.abc import Mapping

from holdfast_agent.movement.tcp_counters import TcpSocket

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_SHOW_PEER = 4
_ATTRIBUTE_PEER = 2
_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF
_PATIENCE_S = 0.02

_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBHIIIII")
_UNIX_SOCKET = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=I")


def other_end(own: TcpSocket, sockets: Mapping[int, TcpSocket]) -> int:
    """Return the inode of the peer's socket; 0: it is on another machine, or no process has it open."""
    return next(
        (
            inode
            for inode, each in sockets.items()
            if (each.local_port, each.remote_port) == (own.remote_port, own.local_port)
            and (_address(each.local), _address(each.remote)) == (_address(own.remote), _address(own.local))
        ),
        0,
    )


def peer_name(own: TcpSocket) -> str:
    """Return ``10.0.0.7:6379``, or ``[::1]:6379``; empty: the kernel has not shown the address."""
    address = _address(own.remote)
    if address is None:
        return ""
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"{host}:{own.remote_port}"


def _address(data: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if len(data) not in (4, 16):
        return None
    address = ipaddress.ip_address(data)
    return getattr(address, "ipv4_mapped", None) or address


def unix_peer(inode: int) -> int:
    """Return the inode of the other end of a unix socket; 0: it has none, or the kernel does not show it."""
    wanted = inode & 0xFFFFFFFF
    query = _QUERY.pack(socket.AF_UNIX, 0, 0, _ALL_STATES, wanted, _SHOW_PEER, _NO_COOKIE, _NO_COOKIE)
    header = _HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
            netlink.settimeout(_PATIENCE_S)
            netlink.sendto(header + query, (0, 0))
            return parse_unix_peer(netlink.recv(4096), inode)
    except OSError:
        return 0


def parse_unix_peer(data: bytes, inode: int) -> int:
    """Return the peer's inode in the kernel's answer about one unix socket; 0: there is none, or it is garbage."""
    if len(data) < _HEADER.size + _UNIX_SOCKET.size or _HEADER.unpack_from(data)[1] != _SOCK_DIAG_BY_FAMILY:
        return 0
    if _UNIX_SOCKET.unpack_from(data, _HEADER.size)[4] != inode & 0xFFFFFFFF:
        return 0
    attributes = data[_HEADER.size + _UNIX_SOCKET.size : _HEADER.unpack_from(data)[0]]
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _ATTRIBUTE_PEER and length >= _ATTRIBUTE.size + _NUMBER.size <= len(attributes):
            return int(_NUMBER.unpack_from(attributes, _ATTRIBUTE.size)[0])
        attributes = attributes[max(_ATTRIBUTE.size, (length + 3) & ~3) :]
    return 0
