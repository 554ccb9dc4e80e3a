"""Asks NCCL's RAS service for its report on a job.

A native thread of NCCL serves it in each process, so it answers though torch or the interpreter is stuck. All processes
of a node share one port, and the kernel chooses which of them answers. Any process of the node can listen there.

The protocol is that of NCCL 2.30.7, src/ras/client_support.cc and ras_internal.h. Its number is 2 in all versions from
2.24.3 on. Reports in JSON came with 2.28.7. None of this was tried on a GPU.
"""

import re
import socket
import time
from collections.abc import Mapping
from contextlib import closing

from holdfast_agent.evidence.recorder_dump import printable
from holdfast_base.text import reason_of

DEFAULT_ADDRESS = ("localhost", 28028)
"""``NCCL_RAS_CLIENT_PORT`` of ras_internal.h."""

LARGEST_REPORT_BYTES = 16 << 20
"""One rank of one communicator takes some 600 bytes: 28,000 of them fit."""

_PROTOCOL = "2"
_LONGEST_LINE = 255
_READ_BYTES = 1 << 16

_GREETING_S = 1.0
"""Time for the first answer. A stopped process takes connections and never answers; the next try may reach another.
NCCL's own client does the same (client.cc)."""

_LEG_S, _EXTRA_S = 5, 5
"""``TIMEOUT n`` is for one leg of the collection, 5 s by default. RAS gives up 5 s after it (collectives.cc)."""


class RasError(Exception):
    """RAS gave no usable report. The message is one line."""


def address_of(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the host and port of RAS by the environment of a rank; None: RAS is off, or cannot listen there.

    NCCL runs RAS if NCCL_RAS_ENABLE is 1, the default (bootstrap.cc). NCCL_RAS_ADDR is ``host:port`` or
    ``[IPv6]:port`` (misc/socket.cc). Files such as /etc/nccl.conf can set both too, and are not read here.
    """
    if environment.get("NCCL_RAS_ENABLE", "").strip() not in ("", "1"):
        return None
    configured = environment.get("NCCL_RAS_ADDR")
    if configured is None:
        return DEFAULT_ADDRESS
    parts = re.fullmatch(r"(?:\[([^\[\]\s]+)\]|([^:,\s]+)):(\d{1,5})", configured.strip(), re.ASCII)
    if parts is None or not 0 < int(parts[3]) < 1 << 16:
        return None
    return parts[1] or parts[2], int(parts[3])


def ask(address: tuple[str, int], *, timeout_s: float) -> bytes:
    """Return the report, as JSON, of the job whose processes listen at an address. It blocks: call it in a thread.

    Args:
        address: result of ``address_of``. No other address is connected to.
        timeout_s: time from the first connection to the last byte. Below 7 s RAS may still wait for a process that
            does not answer. The look-up of a host name comes on top, and is instant for addresses and localhost.

    Raises:
        RasError: RAS refuses, is too slow, speaks another protocol, or sends too much.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with closing(_greeted(address, deadline)) as connection:
            connection.set(f"TIMEOUT {min(_LEG_S, max(1, int(timeout_s) - _EXTRA_S - 1))}")
            connection.set("SET FORMAT json")
            connection.send("STATUS")
            return connection.rest()
    except TimeoutError:
        raise RasError(f"no answer within {timeout_s:g} s") from None
    except (OSError, UnicodeError) as error:
        raise RasError(reason_of(error)) from None


class _Connection:
    """A connection whose every wait ends at one deadline."""

    def __init__(self, address: tuple[str, int], deadline: float) -> None:
        self.deadline = deadline
        self._socket = socket.create_connection(address, timeout=_left(deadline))
        self._unread = b""
        self.close = self._socket.close

    def send(self, command: str) -> None:
        self._socket.settimeout(_left(self.deadline))
        self._socket.sendall(f"{command}\n".encode("ascii"))

    def set(self, command: str) -> None:
        """Send a setting. RAS answers ``OK``, or a line that begins with ``ERROR:``."""
        self.send(command)
        answer = self.line()
        if answer != "OK":
            why = ": JSON needs NCCL 2.28.7 or later" if "FORMAT" in command else ""
            raise RasError(f'the answer to {command} is "{answer}"{why}')

    def line(self) -> str:
        """Return the next line of the answer."""
        while b"\n" not in self._unread and len(self._unread) <= _LONGEST_LINE:
            received = self._receive()
            if not received:
                raise RasError("the connection is closed before the answer")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return printable(line.decode(errors="replace").strip())[:_LONGEST_LINE]

    def rest(self) -> bytes:
        """Return all bytes until RAS closes the connection, as it does after a report."""
        parts, size = [self._unread], len(self._unread)
        while received := self._receive():
            parts.append(received)
            size += len(received)
            if size > LARGEST_REPORT_BYTES:
                raise RasError(f"the report has more than {LARGEST_REPORT_BYTES >> 20} MiB")
        return b"".join(parts)

    def _receive(self) -> bytes:
        self._socket.settimeout(_left(self.deadline))
        return self._socket.recv(_READ_BYTES)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _greeted(address: tuple[str, int], deadline: float) -> _Connection:
    """Return a connection to a process that has named a known protocol. RAS itself takes any number from a client."""
    while True:
        connection = None
        try:
            connection = _Connection(address, min(deadline, time.monotonic() + _GREETING_S))
            connection.send(f"CLIENT PROTOCOL {_PROTOCOL}")
            answer = connection.line()
            if answer != f"SERVER PROTOCOL {_PROTOCOL}":
                raise RasError(f'"{answer}" is not the answer of protocol {_PROTOCOL}')
        except (OSError, RasError) as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, TimeoutError):
                raise
            _left(deadline)  # raises if no time is left for one more try
        else:
            connection.deadline = deadline
            return connection
