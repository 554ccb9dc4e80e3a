"""All runs of a store. A fault in one name or one run stops no other run."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from holdfast_base import redis_client
from holdfast_daemon.leadership import known_runs as runs_module
from holdfast_daemon.leadership.known_runs import Runs
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_proto import keys
from holdfast_proto.run_key import RunKeyError
from tests.support.coroutines import end, until
from tests.support.memory_store import MemoryStore
from tests.support.shells import Store
from tests.support.store_server import StoreServer
from tests.support.virtual_time import on_virtual_time


class FakeShell:
    """A shell that runs until a test lets it fail or return."""

    def __init__(self, run: str) -> None:
        self.run_name = run
        self.given_up = False
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        await self.outcome

    async def stand_down(self) -> None:
        raise RuntimeError("the lease cannot be released")

    def give_up(self) -> None:
        self.given_up = True


class Watched:
    def __init__(self, server: Store, make: Callable[[str], Any] | None = None) -> None:
        self.made: list[FakeShell] = []
        self.registry = CollectorRegistry()
        self.client = server.connect()
        self.runs = Runs(self.client, make or self._make, TickMetrics(self.registry), "the store")
        self.task = asyncio.create_task(self.runs.discover())

    def _make(self, run: str) -> Any:
        self.made.append(FakeShell(run))
        return self.made[-1]

    def shown(self, run: str) -> object:
        return self.runs[run]

    def names(self) -> list[str]:
        return [shell.run_name for shell in self.made]


@contextlib.asynccontextmanager
async def watched(server: Store, make: Callable[[str], Any] | None = None) -> AsyncIterator[Watched]:
    it = Watched(server, make)
    try:
        yield it
    finally:
        await end(it.task)
        await it.runs.close()
        await it.client.aclose()


async def test_names_that_no_run_can_have_are_passed_over_counted_and_logged_once(
    store_server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [b"\xff\xfe", b"", b"..", b"a/b", b"x" * 300, b"a\nb"]
    with store_server.client() as client:
        client.sadd(keys.RUNS, "good", *bad)
    async with watched(store_server) as it:
        looks: Callable[[], float] = lambda: it.registry.get_sample_value("holdfast_run_names_refused_total") or 0  # noqa: E731
        await until(lambda: looks() > 2 * len(bad), "it has looked several times")
        assert it.names() == ["good"]
        assert not it.task.done()
    lines = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert len(lines) == len(bad)
    assert all("\n" not in line and len(line) < 500 for line in lines)


async def test_a_list_of_runs_of_another_type_stops_no_run_that_is_known(store_server: StoreServer) -> None:
    with store_server.client() as client:
        client.sadd(keys.RUNS, "a")
        async with watched(store_server) as it:
            await until(lambda: it.names() == ["a"], "the run is taken up")
            client.set(keys.RUNS, "junk")
            await asyncio.sleep(2 * runs_module.DISCOVER_S)
            assert not it.task.done()
            client.delete(keys.RUNS)
            client.sadd(keys.RUNS, "a", "b")
            await until(lambda: it.names() == ["a", "b"], "the new run is taken up")


@on_virtual_time
async def test_a_run_without_a_key_is_named_once_and_led_when_its_key_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory, has_key = MemoryStore(), False
    memory.sadd(keys.RUNS, "a", "b")
    shells: list[FakeShell] = []

    def make(run: str) -> FakeShell:
        if run == "a" and not has_key:
            raise RunKeyError("there is no key of run a")
        shells.append(FakeShell(run))
        return shells[-1]

    async with watched(memory, make):
        await asyncio.sleep(10.0)
        assert [shell.run_name for shell in shells] == ["b"]
        has_key = True
        await until(lambda: len(shells) == 2, "run a is taken up")
    assert [line for line in caplog.messages if "key" in line] == ["run a is not led: there is no key of run a"]


@on_virtual_time
async def test_a_shell_that_raises_is_replaced_after_a_growing_pause_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory, loop = MemoryStore(), asyncio.get_running_loop()
    memory.sadd(keys.RUNS, "a", "b")
    async with watched(memory) as it:
        await until(lambda: it.names() == ["a", "b"], "both are taken up")
        pauses = []
        for number in range(3):
            failing = it.made[0] if number == 0 else it.made[-1]
            failing.outcome.set_exception(ValueError("bug"))
            await until(lambda failing=failing: failing.given_up, "the shell gives up")  # type: ignore[misc]
            began = loop.time()
            assert it.shown("a") is failing
            await until(lambda number=number: len(it.made) == 3 + number, "another one takes its place")  # type: ignore[misc]
            pauses.append(loop.time() - began)
            assert it.shown("a") is it.made[-1]
        assert pauses[0] < pauses[1] < pauses[2]
        assert it.names() == ["a", "b", "a", "a", "a"]
        assert not it.made[1].outcome.done()
        assert it.registry.get_sample_value("holdfast_run_shell_failures_total") == 3
    failed = [record for record in caplog.records if "leading it failed" in record.getMessage()]
    assert [bool(record.exc_info) for record in failed] == [True, False, False]


async def test_a_shell_that_cannot_be_made_stops_no_other(store_server: StoreServer) -> None:
    def make(run: str) -> Any:
        if run == "a":
            raise OSError("too many open files")
        return FakeShell(run)

    with store_server.client() as client:
        client.sadd(keys.RUNS, "a", "b")
    async with watched(store_server, make) as it:
        await until(lambda: list(it.runs) == ["b"], "the other run is taken up")
        assert not it.task.done()


async def test_a_run_that_has_ended_is_forgotten(store_server: StoreServer) -> None:
    with store_server.client() as client:
        client.sadd(keys.RUNS, "a")
        async with watched(store_server) as it:
            await until(lambda: it.made, "the run is taken up")
            client.srem(keys.RUNS, "a")
            it.made[0].outcome.set_result(None)
            await until(lambda: not it.runs, "it is forgotten")
            assert not it.made[0].given_up


async def test_an_outage_of_the_store_is_said_once_and_so_is_its_end(
    store_server: StoreServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "DISCOVER_S", 0.01)
    monkeypatch.setattr(redis_client, "QUIET_S", 0.01)
    caplog.set_level(logging.INFO)
    store_server.kill()
    async with watched(store_server) as it:
        await until(lambda: bool(caplog.messages), "the daemon says that the store is unreachable")
        store_server.start()
        await until(lambda: len(caplog.messages) > 1, "the daemon says that the store answers")
        assert not it.made
    unreachable, answers = caplog.messages
    assert "cannot be used (" in unreachable
    assert unreachable.endswith("the daemon tries again; ranks that train continue")
    assert "can be used again, after" in answers
