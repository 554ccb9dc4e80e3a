"""Checks the node as the agent starts, and again when the leader asks for it. Never next to living ranks of the run."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast_agent.node import Node
from holdfast_agent.preflight.measuring import CheckedPlaces
from holdfast_agent.preflight.node_check import add_clock, check_node
from holdfast_agent.processes.containment import BackgroundJobs
from holdfast_checkpoint.store.locations import is_url

log = logging.getLogger(__name__)


class NodeChecks:
    """Keeps the newest check in ``node.check``. ``now_ns`` returns the time of Redis; 0: it is unreachable."""

    def __init__(self, node: Node, now_ns: Callable[[], Awaitable[int]]) -> None:
        self._node = node
        self._now_ns = now_ns
        self._jobs = BackgroundJobs(node.errors, "commands")
        self._turn = asyncio.Lock()

    def begin(self, name: str = "") -> "asyncio.Task[None]":
        """Check the node in the background, after a check that runs, and not while one of its ranks lives.

        ``name``: id of the check. The newest one is not repeated.
        """
        return self._jobs.begin(self._check(name))

    async def end(self) -> None:
        """Give up a check that is not done: ranks are to start, or the agent ends."""
        await self._jobs.end()

    async def _check(self, name: str) -> None:
        node = self._node
        async with self._turn:
            if node.check is not None and node.check.id == name:
                return
            if not node.stopped:
                log.info("the node is not checked: a rank lives here")
                return
            log.info("checking this node")
            check = await check_node(places_of(node), name=name)
            await add_clock(check, self._now_ns)
            for failure in check.failures:
                log.warning("this node should not train: %s", failure.reason)
            if check.unmeasured:
                log.warning("the check of this node is not complete: %s", check.unmeasured)
            node.check = check
            node.changed.set()


def places_of(node: Node) -> CheckedPlaces:
    """Return the parts of the machine that the ranks of a node use."""
    options, folders = node.options, [str(node.options.directory)]
    location = node.spec.checkpoint_directory
    if node.saves and location and not is_url(location):
        folders.append(str(options.directory / location))
    return CheckedPlaces(
        folders=tuple(folders),
        shm_directory=str(options.shm_directory),
        address=options.address,
        system_root=str(options.system_root),
    )
