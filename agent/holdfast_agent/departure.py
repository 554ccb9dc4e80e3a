"""Handles SIGTERM, warnings before it, and SIGINT: the agent asks for a planned stop of the run, or ends."""

import asyncio
import logging
import signal
import time
from collections.abc import Collection

from holdfast_agent.node import Node
from holdfast_proto.exit_codes import PREEMPTION_WARNINGS

log = logging.getLogger(__name__)


class Departure:
    """SIGTERM asks for a planned stop within ``grace_s``; SIGINT, or SIGTERM while no rank is alive, ends the agent.

    A warning asks for the stop too, if there is anything to stop. The second of the others, or the end of the grace
    period, ends every wait.
    """

    def __init__(self, node: Node, grace_s: float, warnings: Collection[signal.Signals]) -> None:
        self._node = node
        self._grace_s = grace_s
        self._warnings = warnings
        self._signals = 0
        self.due = asyncio.Event()
        """Set when the agent must end, whatever its run does."""
        self.hurried = asyncio.Event()
        """Set when it must also end without waiting for anything."""

    def listen(self) -> None:
        """Handle these signals from now on."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._ask, self._grace_s)
        loop.add_signal_handler(signal.SIGINT, self._ask, 0.0)
        for number in PREEMPTION_WARNINGS:
            loop.add_signal_handler(number, self._warn, number)

    def _ask(self, grace_s: float) -> None:
        self._signals += 1
        if self._signals > 1:
            self._hurry()
        elif grace_s and not self._node.stopped:
            self._leave()
        else:
            self.due.set()

    def _warn(self, number: signal.Signals) -> None:
        if self._grace_s and number in self._warnings and not self._node.stopped:
            self._leave()

    def _leave(self) -> None:
        """Ask for a planned stop. The grace period begins with the first signal that does so."""
        if self._node.leave_by_s is None:
            log.info("this node is going away: the run stops within %g s, after a last checkpoint", self._grace_s)
            self._node.leave_by_s = time.monotonic() + self._grace_s
            self._node.changed.set()
            asyncio.get_running_loop().call_later(self._grace_s, self._hurry)

    def _hurry(self) -> None:
        self.due.set()
        self.hurried.set()
