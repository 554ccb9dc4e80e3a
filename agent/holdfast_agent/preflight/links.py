"""Looks at what connects the node: TCP inside it, the interface to the other nodes, its InfiniBand ports."""

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from holdfast_agent.preflight.outcomes import NodeFaultError, UnmeasuredError

_LOOPBACK_BYTES = 32 << 20
_ROUNDS = 3
_PATIENCE_S = 5.0
_SETTLING_S = 1.0
"""Time that a fabric takes to make a port active after its link came up."""


def loopback() -> float:
    """Return the bytes per second over a TCP connection inside this process, in the best of several rounds.

    Raises NodeFaultError if other bytes arrive, UnmeasuredError if there is no connection.
    """
    data = os.urandom(_LOOPBACK_BYTES)
    received = bytearray(len(data))
    best_s = _PATIENCE_S
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_PATIENCE_S)
            threading.Thread(target=_send, args=(server.getsockname(), data), daemon=True).start()
            connection, _ = server.accept()
            with connection:
                connection.settimeout(_PATIENCE_S)
                for _ in range(_ROUNDS):
                    best_s = min(best_s, _receive(connection, received))
                    if received != data:
                        raise NodeFaultError("TCP over 127.0.0.1 delivers other bytes than were sent")
    except OSError as error:
        raise UnmeasuredError(f"127.0.0.1: {error}") from None
    return len(data) / best_s


def _send(address: tuple[str, int], data: bytes) -> None:
    with socket.create_connection(address, timeout=_PATIENCE_S) as connection:
        for _ in range(_ROUNDS):
            connection.sendall(data)


def _receive(connection: socket.socket, into: bytearray) -> float:
    """Fill a buffer; return the seconds from its first bytes on. Raises OSError."""
    with memoryview(into) as view:
        got = connection.recv_into(view)
        began_s = time.perf_counter()
        while got < len(view):
            more = connection.recv_into(view[got:])
            if not more:
                raise OSError("the connection was closed")
            got += more
    return time.perf_counter() - began_s


def network(address: str, system_root: Path) -> float | None:
    """Return the bits per second of the link that has the node's address; None: not known.

    Raises NodeFaultError if the link is down, or if an InfiniBand port is not part of its fabric.
    """
    fabric = system_root / "sys/class/infiniband"
    if infiniband_fault(fabric):
        time.sleep(_SETTLING_S)
    fault = infiniband_fault(fabric)
    if fault:
        raise NodeFaultError(fault)
    interface = _interface_of(address)
    return link_rate(system_root / "sys/class/net" / interface) if interface else None


def link_rate(interface: Path) -> float | None:
    """Return the bits per second of an interface, from its folder in sysfs; None: it has none, or does not say.

    Raises NodeFaultError if it is hardware, or a bond, and has no carrier. A virtual one may be down on purpose.
    """
    is_hardware = (interface / "device").exists() or (interface / "bonding").exists()
    if is_hardware and _read(interface / "carrier") == "0":
        raise NodeFaultError(f"the link of {interface.name}, which has the node's address, is down")
    speed = _read(interface / "speed")
    return float(speed) * 1e6 if speed.isdecimal() and int(speed) > 0 else None


def infiniband_fault(fabric: Path) -> str:
    """Return which InfiniBand port has a link and is not active; "" if there is none.

    A port without a link may not be cabled. If no port is active, the node does not use InfiniBand.
    """
    states = {
        port: (_read(port / "state").partition(": ")[2], _read(port / "phys_state").partition(": ")[2])
        for port in sorted(fabric.glob("*/ports/*"))
        if _read(port / "link_layer") == "InfiniBand"
    }
    if not any(state == "ACTIVE" for state, _ in states.values()):
        return ""
    for port, (state, link) in states.items():
        if link == "LinkUp" and state in ("DOWN", "INIT", "ARMED"):
            return f"port {port.name} of {port.parents[1].name} has a link and is {state}, unlike the others"
    return ""


def _interface_of(address: str) -> str:
    """Return the name of the interface that has the address of a host; "" if it is loopback, or another host's."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(address, None)}
    except OSError as error:
        raise UnmeasuredError(f"{address}: {error}") from None
    return _with_address(found, {name: [each.address for each in all_] for name, all_ in psutil.net_if_addrs().items()})


def _with_address(wanted: Iterable[str], interfaces: dict[str, list[str]]) -> str:
    outside = {each for each in wanted if not ipaddress.ip_address(each.partition("%")[0]).is_loopback}
    return next((name for name, found in interfaces.items() if outside.intersection(found)), "")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
