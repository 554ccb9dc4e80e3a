"""Creates unix sockets that only one service and only this user can use, and sockets on a port; finds addresses."""

import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_CREDENTIALS = struct.Struct("3i")
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[A-Za-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?")
_LAST_PORT = 65_535


@dataclass(frozen=True)
class Peer:
    """The process at the other end of a unix socket, according to the kernel.

    A client sees the process that began to listen, even if another one serves the socket now.
    """

    pid: int
    uid: int


def peer(connection: socket.socket) -> Peer:
    """Return the process at the other end of a connected unix socket."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


@contextmanager
def claimed(path: Path, setting: str) -> Iterator[str]:
    """Yield the gRPC target of the socket at ``path``, which the block creates; it gets mode 0600.

    The socket of a dead service is removed. Raises OSError, naming ``setting``, if a living service uses it.
    """
    # A dead service leaves its socket file behind. A connection is the only way to tell it from a living one.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            pass
        except ConnectionRefusedError:
            path.unlink()
        except OSError as error:
            raise OSError(f"{path} cannot be used as a socket ({error}): choose another {setting}") from error
        else:
            raise OSError(f"{path} is in use by another process: choose another {setting}")
    previous = os.umask(0o177)  # the socket must never be open to others, not even for a moment
    try:
        yield f"unix:{path}"
    except RuntimeError as error:  # what gRPC raises when it cannot bind
        raise OSError(f"cannot serve on {path} ({error}): choose another {setting}") from error
    finally:
        os.umask(previous)


def listen(address: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens, and blocks nobody. With port 0 the kernel chooses a free one. Raises OSError."""
    family, kind, protocol, _, where = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST[:PORT]``, in which an IPv6 address has brackets; port 0 without one.

    Raises ValueError, which says how to write it.
    """
    match = _ADDRESS.fullmatch(text)
    port = int(match["port"] or 0) if match else 0
    if match is None or port > _LAST_PORT:
        raise ValueError(f"{text[:80]!r} is no address: use HOST, HOST:PORT or [IPV6]:PORT")
    return match["v6"] or match["host"], port


def address_towards(url: str) -> str:
    """Return the address of the route to a server. Nothing is sent: a socket for datagrams only chooses the route."""
    first = urlsplit(f"//{urlsplit(url).netloc.rpartition('@')[2].split(',')[0]}")
    if not first.hostname:
        return "localhost"  # over a unix socket, all nodes are on this machine
    try:
        found = socket.getaddrinfo(first.hostname, 6379, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as route:
            route.connect(address)
            return str(route.getsockname()[0])
    except OSError:
        return "localhost"
