"""A shell for every run that is registered in the store."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import redis.asyncio

from holdfast_daemon.run_shell import RunShell
from holdfast_proto import keys
from holdfast_proto.redis_client import StoreError, end

DISCOVER_S = 0.25


class Runs(Mapping[str, RunShell]):
    """The shells by the names of their runs."""

    def __init__(self, client: redis.asyncio.Redis, make_shell: Callable[[str], RunShell]) -> None:
        self._client = client
        self._make_shell = make_shell
        self._shells: dict[str, RunShell] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __getitem__(self, run: str) -> RunShell:
        return self._shells[run]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._shells))  # a copy: scrapes read on a thread of their own

    def __len__(self) -> int:
        return len(self._shells)

    async def discover(self) -> None:
        """Take up new runs and let go of ended ones, for ever. Raises what a shell raises: an error of ours."""
        while True:
            with contextlib.suppress(StoreError, OSError):  # each shell counts and logs it for its run
                members: Any = await self._client.smembers(keys.RUNS)
                for run in sorted(name.decode() for name in members):
                    self._take_up(run)
            for run in [run for run, task in self._tasks.items() if task.done()]:
                del self._shells[run]
                self._tasks.pop(run).result()
            await asyncio.sleep(DISCOVER_S)

    def _take_up(self, run: str) -> None:
        if run not in self._shells:
            shell = self._shells[run] = self._make_shell(run)
            self._tasks[run] = asyncio.create_task(shell.run())

    async def close(self) -> None:
        """Let standbys take over at once, and end all shells."""
        for shell in self._shells.values():
            with contextlib.suppress(StoreError, OSError):
                await shell.stand_down()
        for task in self._tasks.values():
            await end(task)
