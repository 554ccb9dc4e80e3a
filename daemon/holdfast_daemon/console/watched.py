"""What the console sees of the daemon."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast_core.model import CoreState
from holdfast_daemon.clock import Clock
from holdfast_daemon.daemon_options import DaemonOptions
from holdfast_daemon.leadership.outbox import StoreCounters
from holdfast_daemon.leadership.requests import Requests
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_daemon.validation.refused_values import Refusals


class WatchedRun(Protocol):
    """The part of a :class:`RunShell` that the console uses.

    The console's thread reads it while the daemon's loop runs: core states are immutable.
    """

    run_name: str
    state: CoreState | None
    store_up: bool
    requests: Requests
    refusals: Refusals
    counters: StoreCounters

    @property
    def leads(self) -> bool:
        """Whether this daemon leads the run."""


@dataclass(frozen=True, kw_only=True)
class WatchedDaemon:
    """The daemon that a console belongs to."""

    options: DaemonOptions
    runs: Mapping[str, WatchedRun]
    clock: Clock
    ticks: TickMetrics
    loop: asyncio.AbstractEventLoop
    """The daemon's own loop: requests of operators are served there."""
    started_unix_s: float
    ended: bool = False
    """Whether these are runs that have ended, as their files show them. There is no daemon then."""
