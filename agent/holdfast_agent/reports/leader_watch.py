"""Reports a run without a daemon to the service that expects the daemon's signs of life.

A dead daemon cannot say why it is silent. The service notices by itself when no sign of life comes: this report names
the reason, and comes sooner. While all is well, only the daemon pings.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from holdfast_agent.node import Node
from holdfast_agent.reports.store_link import StoreLink
from holdfast_base.http_post import PingError, ping_failure
from holdfast_base.threads import in_daemon_thread
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Pause between two looks: each is one small read of Redis."""
LEAST_PATIENCE_S = 30.0
"""Shortest time without a leader that is reported. With the default lease, a standby takes over sooner."""
_TURN_S = 60.0
"""Time by which a node waits longer than the one before it, in rank order: one report is enough."""
_REPORTERS = 3
"""Nodes that report, the first ones in rank order: a large run must not flood the service."""
_FIRST_RETRY_S = 60.0
_LONGEST_RETRY_S = 900.0


class LeaderWatch:
    """Looks whether a daemon leads the run, and reports once when none has for long."""

    def __init__(
        self, node: Node, link: StoreLink, *, clock_s: Callable[[], float] = time.monotonic, look_s: float = LOOK_S
    ) -> None:
        self._node = node
        self._link = link
        self._clock_s = clock_s
        self._look_s = look_s
        self._gone_since_s: float | None = None
        self._has_reported = False
        self._report_at_s = float("-inf")
        self._retry_s = _FIRST_RETRY_S

    async def run(self) -> None:
        """Look again and again, until the agent ends."""
        while True:
            await asyncio.sleep(self._look_s)
            await self.look()

    async def look(self) -> None:
        """Look once, and report if it is time."""
        is_led = await self._link.has_leader()
        now_s = self._clock_s()
        if is_led:
            self._gone_since_s, self._has_reported = None, False
            self._retry_s, self._report_at_s = _FIRST_RETRY_S, float("-inf")
            return
        if self._gone_since_s is None:
            self._gone_since_s = now_s
        turn = self._turn()
        if turn is None or self._has_reported or now_s < self._report_at_s:
            return
        gone_s = now_s - self._gone_since_s
        heartbeat = self._node.spec.notify.heartbeat
        if gone_s >= max(LEAST_PATIENCE_S, heartbeat.every_s) + turn * _TURN_S:
            await self._report(heartbeat, gone_s, is_reachable=is_led is not None)

    def _turn(self) -> int | None:
        """Return the place of this node among those that report; None: it does not.

        Before the first generation no node has a place. Then all report if they are few, and else none does.
        """
        start = self._node.start
        if not start.ranks:
            return 0 if self._node.spec.nodes <= _REPORTERS else None
        turn = start.first_rank // start.ranks
        return turn if turn < _REPORTERS else None

    async def _report(self, heartbeat: store.Heartbeat, gone_s: float, *, is_reachable: bool) -> None:
        what = "no daemon leads it" if is_reachable else "Redis is unreachable"
        reason = (
            f"run {self._node.spec.run}: {what}, as node {self._node.options.node} has seen for {gone_s:.0f} s: "
            "ranks that train continue, but nobody judges them or restarts them"
        )
        fail_file = Path(heartbeat.fail_url_file) if heartbeat.fail_url_file else None
        try:
            await in_daemon_thread(lambda: ping_failure(Path(heartbeat.url_file), fail_file, reason))
        except PingError as error:
            log.warning("the failure of the daemon could not be reported to the heartbeat service: %s", error)
            self._report_at_s = self._clock_s() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
            return
        self._has_reported = True
        log.info("reported to the heartbeat service: %s", reason)
