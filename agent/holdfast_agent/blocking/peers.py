"""Finds the other end of a connection: the peer of a TCP socket, and that of a unix socket."""

import ipaddress
import socket
import struct
from collections.abc import Mapping

from holdfast_agent.movement import sock_diag
from holdfast_agent.movement.tcp_counters import TcpSocket

_REQUEST = 1
_SHOW_PEER = 4
_ATTRIBUTE_PEER = 2
_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF
_PATIENCE_S = 0.02

_QUERY = struct.Struct("=BBHIIIII")
_UNIX_SOCKET = struct.Struct("=BBBBIII")
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
    try:
        with sock_diag.connected(_PATIENCE_S) as netlink:
            sock_diag.send(netlink, query, _REQUEST)
            return parse_unix_peer(netlink.recv(4096), inode)
    except OSError:
        return 0


def parse_unix_peer(data: bytes, inode: int) -> int:
    """Return the peer's inode in the kernel's answer about one unix socket; 0: there is none, or it is garbage."""
    begin = sock_diag.HEADER.size + _UNIX_SOCKET.size
    if len(data) < begin:
        return 0
    length, kind, _, _, _ = sock_diag.HEADER.unpack_from(data)
    shown_inode = _UNIX_SOCKET.unpack_from(data, sock_diag.HEADER.size)[4]
    if kind != sock_diag.SOCK_DIAG_BY_FAMILY or shown_inode != inode & 0xFFFFFFFF:
        return 0
    values = (
        value for known, value in sock_diag.attributes(memoryview(data)[begin:length]) if known == _ATTRIBUTE_PEER
    )
    peer = next((value for value in values if len(value) >= _NUMBER.size), None)
    return 0 if peer is None else int(_NUMBER.unpack_from(peer)[0])
