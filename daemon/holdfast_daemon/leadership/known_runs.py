"""A shell for every run that is registered in the store."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from holdfast_base.redis_client import OPERATION_TIMEOUT_S, StoreError, StoreOutage, end
from holdfast_daemon.leadership.run_shell import RunShell
from holdfast_daemon.leadership.run_store import holds_another_type
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_proto import keys
from holdfast_proto.run_key import RunKeyError

log = logging.getLogger(__name__)

DISCOVER_S = 0.25
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Longest pause before a shell that has failed is started again. The pause doubles with each failure."""
CALM_S = 600.0
"""Time that a shell must run before the pause after its next failure is the first one again."""
_NAMES_LOGGED = 100


@dataclass
class _Failures:
    """How often the shells of one run have failed, and when the next one may start."""

    count: int = 0
    pause_s: float = FIRST_PAUSE_S
    not_before_s: float = 0.0


class Runs(Mapping[str, RunShell]):
    """The shells by the names of their runs. A shell that fails is replaced, and does not affect the others."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        make_shell: Callable[[str], RunShell],
        metrics: TickMetrics,
        store_url: str,
    ) -> None:
        self._client = client
        self._make_shell = make_shell
        self._metrics = metrics
        self._shells: dict[str, RunShell] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, _Failures] = {}
        self._logged: set[bytes] = set()
        self._outage = StoreOutage(log, store_url, "the daemon tries again; ranks that train continue")

    def __getitem__(self, run: str) -> RunShell:
        return self._shells[run]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._shells))  # a copy: scrapes read on a thread of their own

    def __len__(self) -> int:
        return len(self._shells)

    async def discover(self) -> None:
        """Take up new runs, forget ended ones and replace failed shells, forever."""
        while True:
            await self._look()
            await asyncio.sleep(DISCOVER_S)

    async def _look(self) -> None:
        for run, task in list(self._tasks.items()):
            if task.done():
                self._see_end(run, task)
        try:
            # In a cluster, another server than those of the runs may hold the list, and a client waits long for it.
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                members: Any = await self._client.smembers(keys.RUNS)
            self._outage.answered()
            for run in sorted(filter(None, map(self._name, members))):
                self._take_up(run)
        except (StoreError, OSError) as error:  # each shell counts an unreachable store for its run
            if holds_another_type(error):
                self._log_once(b"", f"the list of runs {keys.RUNS} cannot be read: {error}")
            else:
                self._outage.failed(error)

    def _name(self, member: bytes) -> str:
        """Return the name of a run, or "" if it cannot be one."""
        try:
            return keys.check_run_name(member.decode())
        except ValueError as error:  # UnicodeDecodeError is one, too
            self._metrics.run_name_refused()
            self._log_once(member, f"{keys.RUNS} holds {member[:80]!r}, which is passed over: remove it: {error}")
            return ""

    def _log_once(self, about: bytes, text: str) -> None:
        if about not in self._logged and len(self._logged) < _NAMES_LOGGED:
            self._logged.add(about)
            log.error("%s", text)

    def _take_up(self, run: str) -> None:
        loop_s = asyncio.get_running_loop().time()
        failures = self._failures.get(run)
        if run in self._tasks or (failures is not None and loop_s < failures.not_before_s):
            return
        try:
            shell = self._make_shell(run)
        except RunKeyError as error:  # asked again with each look: the key may come later, or this run is another's
            self._log_once(f"{run} {error}".encode(), f"run {run} is not led: {error}")
            return
        except Exception as error:  # noqa: BLE001 (it is logged, and this run alone has to wait)
            self._note_failure(run, error)
            return
        self._metrics.shell_begun()
        self._shells[run] = shell
        self._tasks[run] = asyncio.create_task(shell.run(), name=run)

    def _see_end(self, run: str, task: "asyncio.Task[None]") -> None:
        del self._tasks[run]
        error = None if task.cancelled() else task.exception()
        if error is None:
            del self._shells[run]
            self._failures.pop(run, None)
            return
        # The shell stays visible until another one replaces it: operators see the newest state that it knew.
        self._note_failure(run, error)
        self._shells[run].give_up()

    def _note_failure(self, run: str, error: BaseException) -> None:
        loop_s = asyncio.get_running_loop().time()
        known = self._failures.setdefault(run, _Failures())
        if known.count and loop_s - known.not_before_s > CALM_S:
            known.pause_s = FIRST_PAUSE_S
        known.count += 1
        known.not_before_s = loop_s + known.pause_s
        self._metrics.shell_failed()
        trace = error if known.count == 1 else None
        log.error("run %s: leading it failed and is tried again in %g s: %r", run, known.pause_s, error, exc_info=trace)
        known.pause_s = min(2 * known.pause_s, LONGEST_PAUSE_S)

    async def close(self) -> None:
        """Let standbys take over, and end all shells."""
        for run, shell in self._shells.items():
            try:
                await shell.stand_down()
            except Exception as error:  # noqa: BLE001 (the lease of this run ends by itself, the others are released)
                log.warning("run %s: its lease is not released: %s", run, error)
        for task in self._tasks.values():
            await end(task)
