"""Daemons and agents with a store of several real servers, or with one that loses its data."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_base.redis_client import StoreError
from holdfast_cli.local_run.store import live_nodes, publish_run
from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import PATIENCE_S, until
from tests.support.fake_agent import NODE, RUN, SPEC, FakeAgent
from tests.support.run_keys import KnownKey
from tests.support.shells import daemon, publish_spec, stored_incidents, stored_record, train
from tests.support.store_groups import ClusterGroup, SentinelGroup
from tests.support.store_server import StoreServer

pytestmark = pytest.mark.system


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[SentinelGroup]:
    with contextlib.closing(SentinelGroup(tmp_path)) as group:
        yield group


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterGroup]:
    with contextlib.closing(ClusterGroup(tmp_path)) as group:
        yield group


async def test_a_run_goes_on_with_the_master_that_sentinels_choose(
    sentinels: SentinelGroup, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store_of_all: Any = sentinels
    with sentinels.client() as client:
        publish_run(client, SPEC, KnownKey(RUN), lambda: None)
    async with daemon(folder, store_of_all) as it, FakeAgent(sentinels.url) as agent:
        await train(it, agent, steps=2)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        fence = it.record.fence
        await asyncio.to_thread(sentinels.fail_over)
        await train(it, agent, steps=2)
        await until(lambda: it.shell.leads and it.shell.store_up, "the daemon leads with the new master")
        record = stored_record(store_of_all)
        assert record is not None
        assert record.fence >= fence
        assert stored_incidents(store_of_all) == []
        assert agent.kinds() == ["start"]
        agent.end(1, signal=9)
        await until(lambda: agent.state.generation == 2, "the agent gets commands from the new master")
        await until(lambda: "can be used again" in caplog.text, "the end of the outage is said")
        assert agent.commands[-1].fence >= fence
    assert agent.kinds() == ["start", "gather_evidence", "stop", "start"]
    assert caplog.text.count("cannot be used") == 1
    assert caplog.text.count("can be used again") == 1


async def test_a_client_leaves_a_master_that_does_not_know_yet_that_it_is_none(sentinels: SentinelGroup) -> None:
    client = sentinels.connect()

    async def port() -> int:
        answer: dict[str, int] = await client.info("server")
        return answer["tcp_port"]

    assert await port() == sentinels.master
    sentinels.name_replica()
    async with asyncio.timeout(PATIENCE_S):
        while await port() != sentinels.replica:
            await asyncio.sleep(0.05)
    sentinels.kill(sentinels.sentinel)
    assert await port() == sentinels.replica, "a master is used while no sentinel answers"
    await client.aclose()


async def test_a_run_uses_a_cluster(cluster: ClusterGroup, folder: Path) -> None:
    store_of_all: Any = cluster
    with cluster.client() as client:
        client.set(keys.rendezvous(RUN, 7), "an earlier run")
        publish_run(client, SPEC, KnownKey(RUN), lambda: None)
        assert not client.exists(keys.rendezvous(RUN, 7))
    async with daemon(folder, store_of_all) as it, FakeAgent(cluster.url) as agent:
        await train(it, agent, steps=2)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        agent.refuse_checkpoint(1)
        await until(lambda: stored_incidents(store_of_all), "an event is an incident")
        assert await agent.link.publish_rendezvous(1, "127.0.0.1:1")
        assert await agent.link.find_rendezvous(1, patience_s=30) == "127.0.0.1:1"
        with cluster.client() as client:
            assert live_nodes(client, RUN) == [NODE]
            assert client.smembers(keys.RUNS) == {RUN.encode()}
        agent.end(1, signal=9)
        await until(lambda: agent.state.generation == 2, "the agent gets commands")
        assert (it.shell.counters.failures, agent.link.failures_total) == (0, 0)
    record = stored_record(store_of_all)
    assert record is not None
    assert record.generation == 2


def test_commands_sent_together_to_a_cluster_that_is_down_raise_an_error_of_the_store(cluster: ClusterGroup) -> None:
    with cluster.client() as client:
        client.get("a")
        cluster.close()
        pipeline = client.pipeline(transaction=False)
        pipeline.get("a")
        with pytest.raises(StoreError):
            pipeline.execute()


async def test_a_run_goes_on_when_a_server_loses_all_data_and_its_clock_is_behind(
    store_server: StoreServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish_spec(store_server)
    ahead = "9000000000000-0"
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await train(it, agent, steps=2)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        event = store.Event(node=NODE, checkpoint_unreadable={"step": 1, "reason": "no such file"})
        with store_server.client() as client:
            client.xadd(keys.events(RUN), {"event": agent.sealed(keys.events(RUN), event)}, id=ahead)
            place = keys.commands(RUN, NODE)
            client.xadd(place, {"command": agent.sealed(place, store.NodeCommand())}, id=ahead)
            await until(lambda: it.record.last_event_id == ahead and len(agent.commands) == 2, "both are read")
            await until(lambda: stored_incidents(store_server), "the incident is kept")
            before = stored_record(store_server)
            client.execute_command("FLUSHALL")
        await until(lambda: stored_incidents(store_server), "the incident is there again")
        agent.refuse_checkpoint(2)
        await until(lambda: len(stored_incidents(store_server)) == 2, "the event is read")
        agent.end(1, signal=9)
        await until(lambda: agent.state.generation == 2, "the agent reads new commands")
        after = stored_record(store_server)
        assert before is not None
        assert after is not None
        assert after.fence > before.fence
    assert agent.kinds() == ["start", None, "gather_evidence", "stop", "start"]
    assert caplog.text.count("the store has lost the run's data") == 1
