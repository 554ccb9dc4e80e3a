import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast_base.redis_client import StoreError
from holdfast_daemon.clock import Clock
from holdfast_daemon.leadership.run_store import ENDED_RUN_TTL_S, LeadershipLostError, RunStore
from holdfast_proto import keys
from holdfast_proto.run_key import RunKey
from holdfast_proto.state_value import write_state
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import until
from tests.support.memory_store import MemoryStore
from tests.support.run_keys import KnownKey, opened, seal_of, sealed, sealed_spec
from tests.support.shells import Store
from tests.support.store_server import StoreServer

RUN = "run"
LONG_S = 600.0
SHORT_S = 0.05


@pytest.fixture(params=["server", "memory"])
def store_server(request: pytest.FixtureRequest, store_process: StoreServer) -> Store:
    """A real server, and the one in memory that stands in for it in other tests: both do the same."""
    if request.param == "memory":
        return MemoryStore(Clock())
    store_process.make_ready()
    return store_process


@contextlib.asynccontextmanager
async def daemons(server: Store, *names: str) -> AsyncIterator[list[RunStore]]:
    """Yield the stores of some daemons, each with a connection of its own."""
    clients = [server.connect() for _ in names]
    try:
        stores = [RunStore(client, RUN, name, KnownKey(RUN)) for client, name in zip(clients, names, strict=True)]
        for each in stores:
            each.serve("i")
        yield stores
    finally:
        for client in clients:
            await client.aclose()


async def wins(daemon: RunStore, lease_s: float = LONG_S) -> None:
    """Acquire the lease as soon as the one before has lapsed."""
    while not await daemon.lease.acquire(lease_s, 0):
        await asyncio.sleep(0.01)


async def test_of_two_daemons_one_leads(store_server: Store) -> None:
    async with daemons(store_server, "a", "b") as (a, b):
        answers = await asyncio.gather(a.lease.acquire(LONG_S, 0), b.lease.acquire(LONG_S, 0))
        assert sorted(answers) == [False, True]
        assert sorted([a.lease.fence > 0, b.lease.fence > 0]) == [False, True]


@pytest.mark.parametrize("names", [("a", "b"), ("host 1 77", "host 1")])
async def test_renewal_keeps_the_fence_and_prolongs_the_lease(store_server: Store, names: tuple[str, str]) -> None:
    async with daemons(store_server, *names) as (a, b):
        assert await a.lease.acquire(5.0, 0)
        fence = a.lease.fence
        assert await a.lease.acquire(LONG_S, 0)
        assert a.lease.fence == fence
        with store_server.client() as client:
            remaining_ms: Any = client.pttl(keys.leader(RUN))
        assert remaining_ms > 5_000
        assert not await b.lease.acquire(LONG_S, 0)


async def test_takeover_after_the_lease_has_lapsed_has_a_larger_fence(store_server: Store) -> None:
    async with daemons(store_server, "a", "b") as (a, b):
        assert await a.lease.acquire(SHORT_S, 0)
        await wins(b)
        assert b.lease.fence > a.lease.fence
        assert not await a.lease.acquire(LONG_S, 0)
        assert a.lease.fence == 0


async def test_one_who_comes_back_after_its_lease_has_lapsed_has_a_larger_fence(store_server: Store) -> None:
    async with daemons(store_server, "a") as (a,):
        assert await a.lease.acquire(SHORT_S, 0)
        before = a.lease.fence
        with store_server.client() as client:
            await until(lambda: not client.exists(keys.leader(RUN)), "the lease has lapsed")
        assert await a.lease.acquire(LONG_S, 0)
        assert a.lease.fence > before


async def test_a_server_that_came_back_empty_still_hands_out_a_larger_fence(store_server: Store) -> None:
    async with daemons(store_server, "a", "b") as (a, b):
        assert await a.lease.acquire(LONG_S, 0)
        store_server.kill()
        with pytest.raises(StoreError):
            await b.lease.acquire(LONG_S, 0)
        store_server.start()
        assert await b.lease.acquire(LONG_S, 0)
        assert b.lease.fence > a.lease.fence


async def test_a_fence_is_never_below_what_the_nodes_have_obeyed(store_server: Store) -> None:
    async with daemons(store_server, "a") as (a,):
        assert await a.lease.acquire(LONG_S, 0)
        obeyed = a.lease.fence + 10**9
        assert await a.lease.acquire(LONG_S, obeyed)
        assert a.lease.fence > obeyed
        fence = a.lease.fence
        assert await a.lease.acquire(LONG_S, obeyed)
        assert a.lease.fence == fence


@pytest.mark.parametrize("junk", ["18446744073709551615", "99999999999999", "1e400", "nan", "-1", "x"])
@pytest.mark.parametrize("is_signed", [False, True])
async def test_a_number_that_cannot_be_a_fence_counts_as_none(store_server: Store, junk: str, is_signed: bool) -> None:
    seal = KnownKey(RUN).read().seal

    def written(key: str, text: str) -> str:
        return seal.sign_text(key, text) if is_signed else text

    async with daemons(store_server, "a", "b") as (a, b):
        assert await a.lease.acquire(LONG_S, 0)
        usual = a.lease.fence
        await a.lease.release()
        with store_server.client() as client:
            client.set(keys.fence(RUN), written(keys.fence(RUN), junk))
        assert await b.lease.acquire(LONG_S, 2**40)
        assert usual <= b.lease.fence < usual + 60_000
        with store_server.client() as client:
            client.set(keys.leader(RUN), written(keys.leader(RUN), f"b {junk}"))
        assert await b.lease.acquire(LONG_S, 0)
        assert usual <= b.lease.fence < usual + 60_000


async def test_release_by_the_leader_alone_lets_a_standby_in_at_once(store_server: Store) -> None:
    async with daemons(store_server, "a", "b") as (a, b):
        assert await a.lease.acquire(LONG_S, 0)
        first = a.lease.fence
        assert not await b.lease.acquire(LONG_S, 0)
        await b.lease.release()
        assert not await b.lease.acquire(LONG_S, 0)
        await a.lease.release()
        assert a.lease.fence == 0
        assert await b.lease.acquire(LONG_S, 0)
        assert b.lease.fence > first


async def test_only_another_daemon_counts_as_another_holder(store_server: Store) -> None:
    async with daemons(store_server, "host 1", "host") as (a, b):
        assert await a.lease.other_holder() == ""
        assert await a.lease.acquire(LONG_S, 0)
        assert (await a.lease.other_holder(), await b.lease.other_holder()) == ("", "host 1")


Write = Callable[[RunStore], Awaitable[None]]
WRITES: dict[str, Write] = {
    "record": lambda daemon: daemon.save(store.CoordinatorState(run=RUN)),
    "incident": lambda daemon: daemon.save(store.CoordinatorState(run=RUN), [store.Incident(id="0001")]),
    "command": lambda daemon: daemon.send("node0", store.NodeCommand(id="1")),
}


def written(server: Store) -> list[str]:
    """Return the keys in the store that leaders write."""
    with server.client() as client:
        made = [keys.state(RUN), keys.incidents(RUN), keys.commands(RUN, "node0")]
        return [key for key in made if client.exists(key)]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_leader_that_was_replaced_writes_nothing_more(store_server: Store, write: Write) -> None:
    async with daemons(store_server, "a", "b") as (a, b):
        assert await a.lease.acquire(SHORT_S, 0)
        await wins(b)
        with pytest.raises(LeadershipLostError):
            await write(a)
        assert a.lease.fence == 0
        assert written(store_server) == []
        await write(b)
        assert written(store_server)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_leader_whose_lease_has_lapsed_writes_nothing_more(store_server: Store, write: Write) -> None:
    async with daemons(store_server, "a") as (a,):
        assert await a.lease.acquire(SHORT_S, 0)
        with store_server.client() as client:
            await until(lambda: not client.exists(keys.leader(RUN)), "the lease has lapsed")
        with pytest.raises(LeadershipLostError):
            await write(a)
        assert written(store_server) == []


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_one_who_never_led_writes_nothing(store_server: Store, write: Write) -> None:
    async with daemons(store_server, "a") as (a,):
        with pytest.raises(LeadershipLostError):
            await write(a)
        assert written(store_server) == []


async def test_what_the_leader_saves_its_successor_reads(store_server: Store) -> None:
    record = store.CoordinatorState(run=RUN, phase=store.RUN_PHASE_RUNNING, generation=4, nodes=["node0"])
    old, new = (store.Incident(id=name, generation=4) for name in ("0001-dead-rank", "0002-dead-rank"))
    async with daemons(store_server, "a", "b") as (a, b):
        assert await a.lease.acquire(LONG_S, 0)
        assert (await b.record(), await b.incidents(), await b.spec()) == (None, {}, None)
        await a.save(record, [new, old])
        old.state = store.INCIDENT_STATE_RECOVERED
        await a.save(record, [old])
        assert await b.record() == record
        assert list((await b.incidents()).items()) == [(old.id, old), (new.id, new)]
        await a.save(record, [old, new], forgotten=[old.id])
        assert await b.incidents() == {new.id: new}


async def test_commands_wait_for_their_node_in_order(store_server: Store) -> None:
    async with daemons(store_server, "a") as (a,):
        assert await a.lease.acquire(LONG_S, 0)
        for name in ("1", "2", "3"):
            await a.send("node0", store.NodeCommand(id=name, fence=a.lease.fence))
        with store_server.client() as client:
            entries: Any = client.xrange(keys.commands(RUN, "node0"))
            assert client.exists(keys.commands(RUN, "node1")) == 0
        place = keys.commands(RUN, "node0")
        commands = [store.NodeCommand.FromString(opened(place, fields[b"command"], run=RUN)) for _, fields in entries]
        assert [(command.id, command.fence) for command in commands] == [(n, a.lease.fence) for n in ("1", "2", "3")]


async def test_events_are_read_in_order_and_none_twice(store_server: Store) -> None:
    async with daemons(store_server, "a") as (a,):
        with store_server.client() as client:
            client.sadd(keys.nodes(RUN), "node0")
            made = [store.Event(node="node0", generation=number, command_refused={}) for number in range(4)]
            for event in made[:3]:
                client.xadd(keys.events(RUN), {"event": sealed(keys.events(RUN), event, run=RUN)})
            first, events, _ = await a.events(store.CoordinatorState(), 10)
            assert events == made[:3]
            again, events, _ = await a.events(store.CoordinatorState(last_event_id=first.last_id), 10)
            assert (again.last_id, events) == (first.last_id, [])
            client.xadd(keys.events(RUN), {"event": sealed(keys.events(RUN), made[3], run=RUN)})
        second, events, _ = await a.events(store.CoordinatorState(last_event_id=first.last_id), 10)
        assert second.last_id > first.last_id
        assert events == made[3:]


async def test_a_key_that_is_replaced_changes_nothing_of_the_start_that_is_served(store_server: Store) -> None:
    async with daemons(store_server, "a") as (a,):
        assert await a.lease.acquire(LONG_S, 0)
        record = store.CoordinatorState(run=RUN, phase=store.RUN_PHASE_WAITING)
        await a.save(record)
        a._key_file._key = RunKey("another" * 9, RUN)  # type: ignore[attr-defined]
        a.serve("i")
        assert await a.record() == record
        assert await a.lease.acquire(LONG_S, a.lease.fence)


async def test_only_nodes_whose_lease_is_alive_are_there(store_server: Store) -> None:
    async with daemons(store_server, "a") as (a,):
        assert await a.nodes() == {}
        with store_server.client() as client:
            client.sadd(keys.nodes(RUN), "node1", "node0", "node2")
            states = {name: store.NodeState(run=RUN, node=name) for name in ("node0", "node2")}
            for name, state in states.items():
                client.set(key := keys.node(RUN, name), seal_of(RUN).close(key, write_state(state)), px=60_000)
            found = [(name, state.node) for name, state in (await a.nodes()).items()]
            assert found == [("node0", "node0"), ("node2", "node2")]
            client.delete(keys.node(RUN, "node0"))
        assert list(await a.nodes()) == ["node2"]


async def test_an_ended_run_is_off_the_list_and_its_keys_expire(store_server: Store) -> None:
    async with daemons(store_server, "a") as (a,):
        with store_server.client() as client:
            client.sadd(keys.RUNS, RUN, "another")
            client.set(keys.spec(RUN), sealed_spec(store.RunSpec(run=RUN)))
            assert await a.lease.acquire(LONG_S, 0)
            await a.save(store.CoordinatorState(run=RUN))
            client.sadd(keys.nodes(RUN), "node", "spare")
            for node in ("node", "spare"):
                client.xadd(keys.commands(RUN, node), {"command": b""})
            await a.retire(["node"])
            assert client.smembers(keys.RUNS) == {b"another"}
            commands = keys.commands(RUN, "node"), keys.commands(RUN, "spare")
            for key in (keys.spec(RUN), keys.state(RUN), keys.fence(RUN), *commands):
                remaining_s: Any = client.ttl(key)
                assert 0 < remaining_s <= ENDED_RUN_TTL_S
