import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast_agent.reports import store_link
from holdfast_agent.reports.store_link import StoreLink, most_events
from holdfast_base import redis_client
from holdfast_base.redis_client import StoreOutage, connect
from holdfast_proto import keys
from holdfast_proto.state_value import read_state
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import end, until
from tests.support.run_keys import KnownKey, opened, sealed, sealed_spec
from tests.support.store_server import StoreServer

RUN, NODE = "run", "node0"
SPEC = store.RunSpec(run=RUN, nodes=1, ranks_per_node=2, instance="i")


@contextlib.asynccontextmanager
async def linked(server: StoreServer) -> AsyncIterator[StoreLink]:
    """A link whose events are being sent."""
    client = connect(server.url)
    outage = StoreOutage(logging.getLogger(__name__), server.url, "the agent tries again")
    link = StoreLink(client, RUN, NODE, outage, KnownKey(RUN))
    link.serve(SPEC)
    sender = asyncio.create_task(link.send_events())
    try:
        yield link
    finally:
        await end(sender)
        await client.aclose()


def emit(link: StoreLink, *steps: int) -> None:
    for step in steps:
        link.emit(store.Event(checkpoint_failed=store.CheckpointFailed(step=step)))


def sent(server: StoreServer) -> list[store.Event]:
    with server.client() as client:
        entries: Any = client.xrange(keys.events(RUN))
    return [store.Event.FromString(opened(keys.events(RUN), fields[b"event"], run=RUN)) for _, fields in entries]


def state_of(data: object) -> store.NodeState:
    return read_state(opened(keys.node(RUN, NODE), data, run=RUN))


def fail(_: str, reason: str) -> None:
    raise AssertionError(reason)


def steps(server: StoreServer) -> list[int]:
    return [event.checkpoint_failed.step for event in sent(server)]


async def test_events_arrive_in_order_with_node_and_time(store_server: StoreServer) -> None:
    async with linked(store_server) as link:
        emit(link, *range(600))
        await link.flush(patience_s=30)
        assert steps(store_server) == list(range(600))
        assert {event.node for event in sent(store_server)} == {NODE}
        with store_server.client() as client:
            assert client.smembers(keys.nodes(RUN)) == {NODE.encode()}, "others may send no events"
        assert all(event.unix_s > 0 for event in sent(store_server))
        assert (link.up, link.failures_total, link.events_dropped_total) == (True, 0, 0)


async def test_events_queued_while_the_store_is_unreachable_arrive_in_order(store_server: StoreServer) -> None:
    async with linked(store_server) as link:
        emit(link, 0)
        await link.flush(patience_s=30)
        store_server.kill()
        emit(link, *range(1, 301))
        await until(lambda: link.failures_total > 1, "it has tried in vain")
        assert not link.up
        emit(link, *range(301, 400))
        store_server.start()
        await link.flush(patience_s=30)
        arrived = [step for step, _ in itertools.groupby(steps(store_server))]
        assert arrived == list(range(1, 400))
        assert link.up
        assert link.events_dropped_total == 0


async def test_of_too_many_queued_events_the_oldest_are_dropped_and_counted(
    store_server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_link, "EVENTS_KEPT", 10)
    store_server.kill()
    async with linked(store_server) as link:
        emit(link, *range(8))
        await until(lambda: link.failures_total > 0, "it has tried in vain")
        emit(link, *range(8, 25))
        assert link.events_dropped_total == 15
        store_server.start()
        await link.flush(patience_s=30)
        assert steps(store_server) == list(range(15, 25))


def test_the_stream_keeps_a_minute_of_steps_of_a_large_run() -> None:
    assert [most_events(store.RunSpec(nodes=nodes)) for nodes in (1, 166, 1250)] == [10_000, 10_000, 75_000]


async def test_flush_gives_up_when_its_patience_ends(store_server: StoreServer) -> None:
    store_server.kill()
    async with linked(store_server) as link:
        emit(link, 0)
        await link.flush(patience_s=0.05)
        assert link.failures_total > 0


async def test_commands_are_received_in_order_also_after_the_store_came_back_empty(store_server: StoreServer) -> None:
    received: list[tuple[str, str]] = []

    async def handle(command: store.NodeCommand, _: int, stream_id: str) -> None:
        received.append((command.id, stream_id))

    def send(*ids: str) -> list[str]:
        stream = keys.commands(RUN, NODE)
        with store_server.client() as client:
            commands = [sealed(stream, store.NodeCommand(id=name), run=RUN) for name in ids]
            answers: list[Any] = [client.xadd(stream, {"command": command}) for command in commands]
        return [answer.decode() for answer in answers]

    done, *rest = send("done", "a", "b")
    async with linked(store_server) as link:
        receiver = asyncio.create_task(link.receive_commands(done, handle, fail))
        await until(lambda: len(received) == 2, "the commands sent before arrive")
        rest += send("c")
        await until(lambda: len(received) == 3, "the command sent during this arrives")
        store_server.kill()
        await until(lambda: not link.up, "the link knows that the store is unreachable")
        store_server.start()
        rest += send("d", "e")
        await until(lambda: len(received) == 5, "the commands sent afterwards arrive")
        await end(receiver)
    assert received == list(zip("abcde", rest, strict=True))


async def test_an_agent_without_a_record_reads_the_commands_that_come_after_it(store_server: StoreServer) -> None:
    async with linked(store_server) as link:
        assert await link.newest_command() == "0"
        store_server.kill()
        asked = asyncio.create_task(link.newest_command())
        await until(lambda: link.failures_total > 0, "the store does not answer")
        store_server.start()
        with store_server.client() as client:
            answers: list[Any] = [client.xadd(keys.commands(RUN, NODE), {"command": b"old"}) for _ in range(2)]
        known = {"0", *(answer.decode() for answer in answers)}
        assert await asked in known  # it was asked before
        assert await link.newest_command() == answers[-1].decode()


async def test_a_receiver_that_is_cancelled_ends_whatever_it_is_doing(store_server: StoreServer) -> None:
    async def handle(command: store.NodeCommand, _: int, stream_id: str) -> None:
        raise AssertionError

    for moment in range(20):
        async with linked(store_server) as link:
            receiver = asyncio.create_task(link.receive_commands("0", handle, fail))
            for _ in range(moment):
                await asyncio.sleep(0)
            await asyncio.wait_for(redis_client.end(receiver), 5)
            assert receiver.cancelled()


async def test_publishing_puts_back_what_an_emptied_store_has_lost(store_server: StoreServer) -> None:
    async with linked(store_server) as link:
        for _ in range(2):
            link.up = False
            while not link.up:  # the first try after a restart finds that its connection is gone
                await link.publish_state(store.NodeState(node=NODE, generation=3))
            assert await link.load_spec() == SPEC
            with store_server.client() as client:
                data: Any = client.get(keys.node(RUN, NODE))
                assert state_of(data).generation == 3
                assert 0 < int(client.pttl(keys.node(RUN, NODE))) <= store_link.STATE_TTL_MS
                while not client.smembers(keys.RUNS):
                    await link.publish_state(store.NodeState(node=NODE, generation=3))
                assert client.smembers(keys.RUNS) == {RUN.encode()}
                assert client.smembers(keys.nodes(RUN)) == {NODE.encode()}
            store_server.kill()
            store_server.start()


async def test_after_an_outage_the_store_does_not_hold_the_state_until_it_is_published_again(
    store_server: StoreServer,
) -> None:
    async with linked(store_server) as link:
        assert not link.holds_state
        for _ in range(2):
            await link.publish_state(store.NodeState(run=RUN, node=NODE))
            assert link.holds_state
        store_server.kill()
        assert await link.has_leader() is None
        store_server.start()
        assert await link.has_leader() is False
        assert (link.up, link.holds_state) == (True, False)
        await link.publish_state(store.NodeState(run=RUN, node=NODE))
        assert link.holds_state


async def test_no_state_waits_for_a_server_of_a_cluster_that_holds_the_list_of_runs_and_hangs(
    store_server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_link, "REGISTER_EVERY_S", 0.0)
    asked = []

    async def hang(*words: str) -> None:
        asked.append(words)
        await asyncio.Event().wait()

    async with linked(store_server) as link:
        monkeypatch.setattr(link._client, "sadd", hang)
        for generation in (1, 2, 3):
            await link.publish_state(store.NodeState(node=NODE, generation=generation))
            await asyncio.sleep(0)
        with store_server.client() as client:
            data: Any = client.get(keys.node(RUN, NODE))
        assert (state_of(data).generation, link.failures_total) == (3, 0)
        assert asked == [(keys.RUNS, RUN)]


async def test_publishing_leaves_the_spec_of_another_instance_alone_and_a_node_can_withdraw(
    store_server: StoreServer,
) -> None:
    async with linked(store_server) as link:
        other = store.RunSpec(run=RUN, instance="another")
        with store_server.client() as client:
            client.set(keys.spec(RUN), sealed_spec(other))
        await link.publish_state(store.NodeState(node=NODE))
        assert await link.load_spec() == other
        await link.withdraw()
        with store_server.client() as client:
            assert client.get(keys.node(RUN, NODE)) is None, "the node is gone immediately"
            client.set(keys.spec(RUN), b"\xff\xff\xff")
        assert await link.load_spec() is None, "it cannot be parsed"


async def test_while_the_store_is_unreachable_nothing_raises_and_failures_are_counted(
    store_server: StoreServer,
) -> None:
    store_server.kill()
    async with linked(store_server) as link:
        assert await link.load_spec() is None
        await link.publish_state(store.NodeState(node=NODE))
        assert not await link.publish_rendezvous(1, "127.0.0.1:29500")
        assert await link.find_rendezvous(1, patience_s=0.01) is None
        await link.withdraw()
        assert (link.up, link.operations_total, link.failures_total) == (False, 5, 5)


async def test_the_nodes_of_a_generation_find_where_it_meets(store_server: StoreServer) -> None:
    async with linked(store_server) as host, linked(store_server) as guest:
        assert await guest.find_rendezvous(2, patience_s=0.01) is None
        searching = asyncio.create_task(guest.find_rendezvous(2, patience_s=30))
        assert await host.publish_rendezvous(1, "127.0.0.1:1111")
        assert await host.publish_rendezvous(2, "127.0.0.1:2222")
        assert await searching == "127.0.0.1:2222"


async def test_entries_that_are_no_commands_are_refused_and_the_next_command_arrives(store_server: StoreServer) -> None:
    received: list[str] = []
    refused: list[str] = []

    async def handle(command: store.NodeCommand, _: int, stream_id: str) -> None:
        received.append(command.id)

    good: dict[Any, Any] = {"command": sealed(keys.commands(RUN, NODE), store.NodeCommand(id="good"), run=RUN)}
    junk: list[dict[Any, Any]] = [{"command": b"\xff\xff\xff"}, {"something": "else"}, {b"\xff": b"\xff"}]
    with store_server.client() as client:
        for fields in (*junk, good):
            client.xadd(keys.commands(RUN, NODE), fields)
    async with linked(store_server) as link:
        receiver = asyncio.create_task(link.receive_commands("0", handle, lambda entry, _: refused.append(entry)))
        await until(lambda: received, "the good one arrives")
        await end(receiver)
    assert (received, len(refused)) == (["good"], 3)
