"""A lease outlives a tick that computes for long, and no tick that is stuck."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_core import coordinator
from holdfast_core.model import CheckpointRequest, Observation
from holdfast_daemon.leadership import run_lease
from holdfast_daemon.leadership.lease_keeper import LONGEST_SILENCE_S, RENEW, LeaseKeeper, Step, next_step
from holdfast_daemon.leadership.tick_metrics import TickPace
from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.running_daemons import running
from tests.support.coroutines import until, wait_until
from tests.support.fake_agent import RUN
from tests.support.memory_store import MemoryStore
from tests.support.run_keys import KnownKey, sealed
from tests.support.shells import LEASE_S, publish_spec, stored_record
from tests.support.store_server import StoreServer
from tests.support.virtual_time import VirtualTimeLoop, on_virtual_time

KEPT_S = 1.0
"""Lease of the tests with a real server. Its thread has half of it to renew it on a busy machine."""


@pytest.mark.parametrize(
    ("since_renewal_s", "since_mark_s", "step"),
    [(0.9, 0.0, Step.WAIT), (0.9, 99.0, Step.WAIT), (1.0, 0.0, Step.RENEW), (50.0, 30.0, Step.RENEW)],
)
def test_a_lease_is_renewed_when_half_of_it_has_passed(since_renewal_s: float, since_mark_s: float, step: Step) -> None:
    times = {"since_renewal_s": since_renewal_s, "since_mark_s": since_mark_s}
    assert next_step(**times, lease_s=2.0, limit_s=LONGEST_SILENCE_S) is step


def test_the_lease_of_a_leader_that_makes_no_progress_is_left() -> None:
    assert next_step(since_renewal_s=1.0, since_mark_s=30.1, lease_s=2.0, limit_s=30.0) is Step.LEAVE


def test_late_ticks_are_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    pace = TickPace("r", lease_s=2.0)
    for begun_s, took_s in ((100.0, 1.0), (110.0, 1.1), (169.0, 2.0), (180.0, 3.0)):
        pace.begin(begun_s)
        pace.finish(begun_s + took_s, ranks=4096)
    assert (pace.late_total, pace.finished_s) == (3, 183.0)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(", and")[0] for line in lines] == [
        "run r: a tick over 4096 ranks took 1.1 s",
        "run r: a tick over 4096 ranks took 3.0 s",
    ]


@pytest.fixture
def at_next_checkpoint(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Have something happen inside the next tick that decides on an operator's checkpoint."""
    step: Callable[..., Any] = coordinator.step
    waiting: list[Callable[[], None]] = []

    def observed(state: Any, now: float, observation: Observation, *rest: Any) -> Any:
        if waiting and any(isinstance(one, CheckpointRequest) for one in observation.requests):
            waiting.pop()()
        return step(state, now, observation, *rest)

    monkeypatch.setattr(coordinator, "step", observed)
    return waiting.append


@on_virtual_time
async def test_what_a_tick_decided_is_done_once_though_the_lease_ended_in_it(
    folder: Path, caplog: pytest.LogCaptureFixture, at_next_checkpoint: Callable[[Callable[[], None]], None]
) -> None:
    caplog.set_level(logging.INFO)
    memory = MemoryStore()
    publish_spec(memory)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with running(folder, memory, steps=3) as (it, agent):
        led_with = agent.commands[0].fence

        def outlast() -> None:
            loop._virtual.now_s += LEASE_S + 1.0
            assert not memory.exists(keys.leader(RUN))

        at_next_checkpoint(outlast)
        answer = await it.shell.requests.checkpoint()
        await until(lambda: len(agent.commands) > 1, "the agent has the command")
        await asyncio.sleep(2 * LEASE_S)  # a command that is sent twice would be there by then
        assert answer.step >= 0
        assert it.shell.pace.late_total == 1
        commands = [command for command in agent.commands if command.WhichOneof("kind") == "take_checkpoint"]
        assert [command.take_checkpoint.step for command in commands] == [answer.step]
        assert [command.fence > led_with for command in commands] == [True]
        record = stored_record(memory)
        assert record is not None
        assert record.fence == commands[0].fence
    assert "the lease has ended during a tick of 4." in caplog.text
    assert "another daemon" not in caplog.text


@on_virtual_time
async def test_what_a_tick_decided_is_dropped_if_another_daemon_has_led_in_it(
    folder: Path, caplog: pytest.LogCaptureFixture, at_next_checkpoint: Callable[[Callable[[], None]], None]
) -> None:
    memory = MemoryStore()
    publish_spec(memory)
    async with running(folder, memory, steps=3) as (it, agent):

        def let_another_lead() -> None:
            lease = [keys.leader(RUN), keys.fence(RUN)]
            memory.delete(lease[0])
            fence = it.record.fence + 1
            seal = KnownKey(RUN).read().seal
            memory.set(lease[1], seal.sign_text(lease[1], str(fence)))
            record = store.CoordinatorState()
            record.CopyFrom(it.record)
            record.restarts_total, record.fence = 7, fence
            memory.set(keys.state(RUN), sealed(keys.state(RUN), record, run=RUN))
            memory.delete(lease[0])

        at_next_checkpoint(let_another_lead)
        answer = await it.shell.requests.checkpoint()
        await until(lambda: it.shell.leads and it.record.restarts_total == 7, "it continues from the other's record")
        await asyncio.sleep(2 * LEASE_S)
        assert (answer.step, answer.reason) == (-1, "another daemon leads now: try again")
        assert agent.kinds() == ["start"]
    assert "another daemon has led in between" in caplog.text


@contextlib.contextmanager
def lease_keeper(server: StoreServer, **options: float) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(server.client, KEPT_S, **options)
    try:
        yield keeper
    finally:
        keeper.close()


class Standby:
    """Tries to take the lease while the loop of the leader is blocked."""

    def __init__(self, server: StoreServer) -> None:
        self._client = server.client()
        self.fence = 0

    def takes_over(self) -> bool:
        seen: Any = [self._client.get(key) or b"" for key in (keys.leader(RUN), keys.fence(RUN))]
        if seen[0]:
            return False
        lease = [keys.leader(RUN), keys.fence(RUN)]
        seal, fence = KnownKey(RUN).read().seal, str(time.time_ns() // 10**6)
        texts = [seal.sign_text(lease[0], f"standby {fence}"), seal.sign_text(lease[1], fence)]
        return bool(self._client.eval(run_lease.TAKE, 2, *lease, *seen, *texts, "600000"))

    def left_ms(self) -> int:
        return int(str(self._client.pttl(keys.leader(RUN))))

    def store(self) -> dict[Any, Any]:
        """Return everything that the store holds."""
        return {key: self._client.dump(key) for key in sorted(self._client.keys()) if b":node" not in key}


@pytest.mark.parametrize("held", ["", "a 8", "b 7"])
def test_the_thread_prolongs_no_lease_but_its_own(store_server: StoreServer, held: str) -> None:
    with store_server.client() as client:
        if held:
            client.set(keys.leader(RUN), held, px=60_000)
        assert client.eval(RENEW, 1, keys.leader(RUN), "a 7", "600000") == 0
        assert (client.get(keys.leader(RUN)) or b"").decode() == held
        assert client.pttl(keys.leader(RUN)) <= 60_000


async def test_a_tick_of_several_leases_keeps_its_lease_and_its_fence(
    store_server: StoreServer, folder: Path, at_next_checkpoint: Callable[[Callable[[], None]], None]
) -> None:
    publish_spec(store_server)
    standby, renewals = Standby(store_server), 0

    def compute() -> None:
        """Compute until the lease has been renewed five times, at half of it: longer than two leases."""
        nonlocal renewals
        left_ms = standby.left_ms()
        while renewals < 5:
            assert not standby.takes_over()
            before, left_ms = left_ms, standby.left_ms()
            renewals += left_ms > before

    with lease_keeper(store_server, limit_s=600.0) as keeper:
        async with running(folder, store_server, steps=3, lease_s=KEPT_S, keeper=keeper) as (it, agent):
            at_next_checkpoint(compute)
            answer = await it.shell.requests.checkpoint()
            await until(lambda: len(agent.commands) > 1, "the agent has the command")
            assert (it.shell.leads, answer.step >= 0, renewals) == (True, True, 5)
            assert len({command.fence for command in agent.commands}) == 1
        await until(standby.takes_over, "the lease of a shell that has ended is not renewed")


async def test_a_tick_that_is_stuck_loses_its_lease_and_writes_nothing(
    store_server: StoreServer,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    at_next_checkpoint: Callable[[Callable[[], None]], None],
) -> None:
    publish_spec(store_server)
    standby, left = Standby(store_server), dict[Any, Any]()

    def hang() -> None:
        wait_until(standby.takes_over, "the standby takes over")
        left.update(standby.store())

    with lease_keeper(store_server, limit_s=0.5) as keeper:
        async with running(folder, store_server, steps=3, lease_s=KEPT_S, keeper=keeper) as (it, agent):
            at_next_checkpoint(hang)
            answer = await it.shell.requests.checkpoint()
            assert not it.shell.leads
            assert (answer.step, answer.reason) == (-1, "another daemon leads now: try again")
            assert standby.store() == left
            assert agent.kinds() == ["start"]
    assert "its tick has made no progress for" in caplog.text
    assert "another daemon leads: standby" in caplog.text
