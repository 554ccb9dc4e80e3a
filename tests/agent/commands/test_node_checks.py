"""The leader has a node checked between two generations."""

import asyncio
import logging
from pathlib import Path

import pytest

from holdfast_agent.commands import node_checks
from holdfast_agent.preflight.measuring import CheckedPlaces
from holdfast_proto.v1 import store_pb2 as store
from tests.agent.commands.test_command_runner import GENERATION, Desk
from tests.support.coroutines import until


class Checks:
    """Stands in for the check itself, which ends when a test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.end = asyncio.Event()

    async def check_node(self, places: CheckedPlaces, *, name: str) -> store.NodeCheck:
        assert places.folders
        self.begun.append(name)
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        return store.NodeCheck(id=name, took_s=1.0)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    found = Checks()
    monkeypatch.setattr(node_checks, "check_node", found.check_node)
    return found


@pytest.fixture
def desk(folder: Path) -> Desk:
    """A node without living ranks."""
    found = Desk(folder)
    found.node.ranks.clear()
    return found


async def give_check(desk: Desk, name: str) -> None:
    await desk.give(check_node=store.CheckNode(id=name))


async def test_a_node_without_ranks_is_checked_once_for_each_request(desk: Desk, checks: Checks) -> None:
    await give_check(desk, "first")
    await until(lambda: checks.begun, "the check begins")
    await give_check(desk, "first")  # repeated while it runs
    await desk.give()  # others are carried out next to it
    assert desk.reported == ["evidence_captured"]
    desk.node.changed.clear()
    checks.end.set()
    await until(desk.node.changed.is_set, "the check has ended")
    assert desk.node.state(ready=True).check.id == "first"
    await give_check(desk, "first")
    await give_check(desk, "second")
    await until(lambda: desk.node.check is not None and desk.node.check.id == "second", "the second check")
    assert checks.begun == ["first", "second"]


async def test_a_node_with_a_living_rank_is_not_checked(
    folder: Path, checks: Checks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    desk = Desk(folder)
    await give_check(desk, "first")
    await until(lambda: "the node is not checked: a rank lives here" in caplog.messages, "the refusal")
    assert (checks.begun, desk.node.check) == ([], None)


async def test_a_start_ends_the_check_first(desk: Desk, checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled_before_start: list[str] = []

    async def start(*_: object) -> None:
        cancelled_before_start.extend(checks.cancelled)

    monkeypatch.setattr(desk.supervisor, "start", start)
    await give_check(desk, "first")
    await until(lambda: checks.begun, "the check begins")
    command = store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_SEED)
    await desk.give(generation=GENERATION + 1, start=command)
    assert cancelled_before_start == ["first"]
    assert desk.node.check is None


async def test_a_check_that_is_asked_for_right_before_a_start_does_not_begin(
    desk: Desk, checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(*_: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(desk.supervisor, "start", start)
    await give_check(desk, "first")
    command = store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_SEED)
    await desk.give(generation=GENERATION + 1, start=command)
    assert checks.begun == checks.cancelled
    assert desk.node.check is None
