"""Handles SIGTERM and SIGINT: the agent asks for a planned stop of the run, or ends."""

import asyncio
import logging
import signal
import time

from holdfast_agent.node import Node

log = logging.getLogger(__name__)


class Departure:
    """SIGTERM asks for a planned stop within ``grace_s``; SIGINT, or SIGTERM while no rank is alive, ends the agent.

    The second signal, or the end of the grace period, ends every wait.
    """

    def __init__(self, node: Node, grace_s: float) -> None:
        self._node = node
        self._grace_s = grace_s
        self._signals = 0
        self.due = asyncio.Event()
        """Set when the agent must end, whatever its run does."""
        self.hurried = asyncio.Event()
        """Set when it must also end without waiting for anything."""

    def listen(self) -> None:
        """Handle both signals from now on."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._ask, self._grace_s)
        loop.add_signal_handler(signal.SIGINT, self._ask, 0.0)

    def _ask(self, grace_s: float) -> None:
        self._signals += 1
        if self._signals > 1:
            self._hurry()
        elif grace_s and not self._node.stopped:
            log.info("this node is going away: the run stops within %g s, after a last checkpoint", grace_s)
            self._node.leave_by_s = time.monotonic() + grace_s
            self._node.changed.set()
            asyncio.get_running_loop().call_later(grace_s, self._hurry)
        else:
            self.due.set()

    def _hurry(self) -> None:
        self.due.set()
        self.hurried.set()
