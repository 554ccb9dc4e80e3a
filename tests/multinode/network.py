"""Several machines on one: network namespaces that are joined by two switches, one for control and one for data.

A link that is cut loses its carrier at the switch. What is sent over it vanishes, and neither end is notified.
No packet leaves the namespaces, and nothing is changed outside of them.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

import pytest

from tests.support.programs import are_required, find


class Link(Enum):
    """A network of all nodes. Its value is the name of every node's interface to it."""

    CONTROL = "control"
    """Network in which Redis is, at node 0."""
    DATA = "data"
    """Network in which ranks meet and communicate."""

    @property
    def subnet(self) -> int:
        return list(Link).index(self)


@dataclass(frozen=True)
class Network:
    """A network of nodes 0 to ``size - 1``. The switches are at node 0."""

    prefix: str
    size: int

    def namespace(self, node: int) -> str:
        return f"{self.prefix}-{node}"

    def address(self, node: int, link: Link) -> str:
        return f"10.77.{link.subnet}.{node + 1}"

    def inside(self, node: int, command: Sequence[str]) -> list[str]:
        """Return the argv that runs a command on a node."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(node)}", *command]

    def pids(self, node: int) -> list[int]:
        """Return the pids of all processes of a node."""
        command = ["ip", "netns", "pids", self.namespace(node)]
        return [int(pid) for pid in subprocess.run(command, check=True, capture_output=True, timeout=10).stdout.split()]

    def cut(self, node: int, *links: Link) -> None:
        """Cut a node off from all others."""
        self._set(node, links, "down")

    def repair(self, node: int, *links: Link) -> None:
        """Connect a node with all others again."""
        self._set(node, links, "up")

    def _set(self, node: int, links: Sequence[Link], state: str) -> None:
        for link in links:
            _ip("-n", self.namespace(0), "link", "set", _port(link, node), state)


@contextmanager
def network(size: int) -> Iterator[Network]:
    """Yield an intact network of ``size`` nodes, and remove it afterwards.

    If none can be made, the test is skipped. With HOLDFAST_TEST_NETWORKS=required, as in CI, it fails.
    """
    _skip_unless_possible()
    built = Network(f"holdfast-{os.getpid()}", size)
    with ExitStack() as undo:
        for node in range(size):
            _ip("netns", "add", built.namespace(node))
            undo.callback(_ip, "netns", "delete", built.namespace(node))
            _ip("-n", built.namespace(node), "link", "set", "lo", "up")
        for link in Link:
            _add_switch(built, link)
            for node in range(1, size):
                _plug_in(built, node, link)
        yield built


def _skip_unless_possible() -> None:
    missing = [tool for tool in ("ip", "nsenter") if find(tool) is None]
    if missing:
        reason = f"network namespaces need {' and '.join(missing)}: install iproute2 and util-linux"
        _leave_out(reason, is_failure=are_required())
    if os.geteuid() != 0:
        _leave_out("network namespaces need root")
    probe = f"holdfast-{os.getpid()}-probe"
    try:
        _ip("netns", "add", probe)
    except subprocess.CalledProcessError as error:
        _leave_out(f"no network namespaces here: {error.stderr.strip()}")
    _ip("netns", "delete", probe)


def _leave_out(reason: str, *, is_failure: bool = False) -> NoReturn:
    if is_failure or os.environ.get("HOLDFAST_TEST_NETWORKS") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def _add_switch(built: Network, link: Link) -> None:
    """Add the switch of a network. Node 0 has its address on the switch itself."""
    here = ("-n", built.namespace(0))
    _ip(*here, "link", "add", "name", link.value, "type", "bridge")
    _ip(*here, "address", "add", f"{built.address(0, link)}/24", "dev", link.value)
    _ip(*here, "link", "set", link.value, "up")


def _plug_in(built: Network, node: int, link: Link) -> None:
    here, there, port = ("-n", built.namespace(0)), ("-n", built.namespace(node)), _port(link, node)
    _ip(*here, "link", "add", port, "type", "veth", "peer", "name", link.value, "netns", built.namespace(node))
    _ip(*here, "link", "set", port, "master", link.value, "up")
    _ip(*there, "address", "add", f"{built.address(node, link)}/24", "dev", link.value)
    _ip(*there, "link", "set", link.value, "up")


def _port(link: Link, node: int) -> str:
    return f"{link.value}-{node}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10)
