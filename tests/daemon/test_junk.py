"""Junk under the keys of one run. The run next to it is led as if there were none."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast_proto import keys
from holdfast_proto.state_value import write_state
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.running_daemons import running
from tests.support.coroutines import PATIENCE_S, until
from tests.support.daemons import DaemonProcess, daemon_process
from tests.support.fake_agent import NODE, RUN, SPEC, FakeAgent
from tests.support.run_keys import NUMBERS, seal_of, sealed, sealed_spec
from tests.support.shells import daemon, publish_spec, stored_record, train
from tests.support.store_server import StoreServer

pytestmark = pytest.mark.system

JUNK_RUN = "junk"
JUNK = b"\xff\xfe junk"
Plant = Callable[[redis.Redis], Any]


def spec_of(run: str, **changes: Any) -> bytes:
    spec = store.RunSpec()
    spec.CopyFrom(SPEC)
    spec.run = run
    for name, value in changes.items():
        setattr(spec, name, value)
    return sealed_spec(spec)


def node_of(run: str, **changes: Any) -> bytes:
    node = store.NodeState(run=run, node="n", instance="i", ready=True, stopped=True)
    for name, value in changes.items():
        setattr(node, name, value)
    return seal_of(run).close(keys.node(run, "n"), write_state(node), NUMBERS.next())


def event(run: str, node: str = "n", **changes: Any) -> dict[Any, Any]:
    return {"event": sealed(keys.events(run), store.Event(node=node, **changes), run=run)}


def plant_under_every_key(client: redis.Redis) -> None:
    """Put junk bytes under every key of a run that has a good spec."""
    run = JUNK_RUN
    client.set(keys.spec(run), spec_of(run))
    client.set(keys.state(run), JUNK)
    client.set(keys.fence(run), "0")
    client.sadd(keys.nodes(run), "n", "other", JUNK, "a\nb")
    client.set(keys.node(run, "n"), JUNK)
    client.set(keys.node(run, "other"), node_of(run))
    client.hset(keys.incidents(run), mapping={"0001-x": JUNK, JUNK: JUNK, "../x": b""})
    client.xadd(keys.events(run), {"event": JUNK})
    client.xadd(keys.events(run), {"no event": "x"})
    client.xadd(keys.events(run), event(run))
    client.xadd(keys.events(run), event(run, unix_s=math.nan, checkpoint_committed=store.CheckpointCommitted(step=-9)))


def plant_other_types(client: redis.Redis) -> None:
    """Put a value of another type under every key."""
    run = JUNK_RUN
    for key in (keys.spec(run), keys.state(run), keys.leader(run), keys.fence(run), keys.node(run, "n")):
        client.lpush(key, "x")
    for key in (keys.nodes(run), keys.events(run), keys.incidents(run), keys.commands(run, "n")):
        client.set(key, "x")


def plant_spec(**changes: Any) -> Plant:
    return lambda client: client.set(keys.spec(JUNK_RUN), spec_of(JUNK_RUN, **changes))


PLANTS: dict[str, Plant] = {
    "junk under every key": plant_under_every_key,
    "other types under every key": plant_other_types,
    "junk as spec": lambda client: client.set(keys.spec(JUNK_RUN), JUNK),
    "no nodes": plant_spec(nodes=0),
    "absurd size": plant_spec(nodes=2**31, ranks_per_node=2**31),
    "unknown mode": plant_spec(mode=77),
    "no instance": plant_spec(instance=""),
}


async def refused_more(it: DaemonProcess, before: float) -> None:
    """Wait until the daemon has refused more than ``before`` messages of the run that is full of junk."""
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(it.refused, JUNK_RUN) <= before:  # the agent reports all the while
            await asyncio.sleep(0.02)


async def test_a_run_full_of_junk_stops_neither_the_daemon_nor_another_run(
    store_server: StoreServer, folder: Path
) -> None:
    with daemon_process(folder, store_server) as it:
        publish_spec(store_server)
        async with FakeAgent(store_server.url) as agent:
            await until(lambda: agent.state.generation == 1, "the good run is led")
            for name, plant in PLANTS.items():
                # Before the junk is there: a daemon that leads the run reads its spec only once.
                before = await asyncio.to_thread(it.refused, JUNK_RUN)
                with store_server.client() as client:
                    client.delete(*(client.keys(f"holdfast:{{{JUNK_RUN}}}*") or ["none"]))
                    plant(client)
                    client.sadd(keys.RUNS, JUNK_RUN, JUNK, "../../etc", "x" * 300)
                generation = agent.state.generation
                await refused_more(it, before)
                done = agent.state.ranks[0].progress.step
                agent.finish_step()
                await until(lambda done=done: (it := stored_record(store_server)) and it.newest_step >= done, name)  # type: ignore[misc]
                agent.end(0, signal=9)
                await until(lambda generation=generation: agent.state.generation > generation, f"{name}: restart")  # type: ignore[misc]
            status = it.stub().GetStatus(control.GetStatusRequest(run=RUN))
            assert status.incidents == len(PLANTS), it.log
            assert it.process.poll() is None
        assert "Traceback" not in it.log
        assert it.log.count("run junk: its spec is refused") == 1
        assert "which is passed over" in it.log


BAD_EVENTS: dict[str, Callable[[], dict[Any, Any]]] = {
    "junk": lambda: {"event": seal_of(RUN).close(keys.events(RUN), JUNK)},
    "no field": lambda: {"no event": b"x"},
    "no kind": lambda: event(RUN),
    "unknown node": lambda: event(RUN, node="?", command_refused=store.CommandRefused()),
    "bad time": lambda: event(RUN, unix_s=-1.0, command_refused=store.CommandRefused()),
    "bad step": lambda: event(RUN, checkpoint_committed=store.CheckpointCommitted(step=-9)),
}


@pytest.mark.parametrize("bad", BAD_EVENTS.values(), ids=BAD_EVENTS)
async def test_a_bad_event_is_passed_over_and_the_stream_continues_after_it(
    store_server: StoreServer, folder: Path, bad: Callable[[], dict[Any, Any]]
) -> None:
    publish_spec(store_server)
    async with running(folder, store_server) as (it, agent):
        with store_server.client() as client:
            for _ in range(3):
                client.xadd(keys.events(RUN), bad())
        await train(it, agent)
        await until(lambda: it.shell.refusals.counts["event"] == 3, "the events are refused")
        newest = it.record.last_event_id
        await train(it, agent)
        await until(lambda: it.record.last_event_id > newest, "later events are read")
        assert it.shell.refusals.counts["event"] == 3


async def test_a_node_whose_key_holds_another_type_for_a_moment_is_no_lost_node(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with running(folder, store_server) as (it, agent):
        await agent.die()
        with store_server.client() as client:
            client.delete(keys.node(RUN, NODE))
            client.lpush(keys.node(RUN, NODE), "x")
        before = it.shell.refusals.counts["key"]
        await until(lambda: it.shell.refusals.counts["key"] > before + 2, "the key is refused")
        assert it.shell.state is not None
        assert (list(it.shell.state.nodes), list(it.shell.state.missed_unix_s)) == ([NODE], [])


async def test_commands_for_a_node_whose_stream_is_junk_hold_up_no_other(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with FakeAgent(store_server.url) as agent:
        await agent.die()
        with store_server.client() as client:
            client.set(keys.commands(RUN, NODE), "junk")
            client.sadd(keys.nodes(RUN), NODE)
            client.set(key := keys.node(RUN, NODE), seal_of(RUN).close(key, write_state(agent.state), NUMBERS.next()))
            async with daemon(folder, store_server) as it:
                await it.until_phase(store.RUN_PHASE_STARTING)
                await until(lambda: it.shell.refusals.counts["key"] > 1, "the start is commanded, and again")
                assert it.shell.store_up


async def test_a_leader_whose_predecessor_left_junk_continues_from_the_states_of_the_nodes(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with FakeAgent(store_server.url) as agent:
        async with daemon(folder, store_server, "a") as first:
            await train(first, agent)
            await first.until_phase(store.RUN_PHASE_RUNNING)
            agent.refuse_checkpoint(1)
            await until(lambda: first.shell.state and first.shell.state.incidents, "there is an incident")
        with store_server.client() as client:
            client.set(keys.state(RUN), JUNK)
        async with daemon(folder, store_server, "b") as second:
            await second.until_phase(store.RUN_PHASE_RUNNING)
            agent.refuse_checkpoint(2)
            await until(lambda: second.shell.state and len(second.shell.state.incidents) == 2, "there is another one")
            assert second.shell.state is not None
            assert list(second.shell.state.incidents) == ["0001-checkpoint-failed", "0002-checkpoint-failed"]
            assert second.record.generation == 1
        assert agent.kinds() == ["start"]


async def test_a_spec_that_ticks_bad_leaves_a_led_run_led(store_server: StoreServer, folder: Path) -> None:
    publish_spec(store_server)
    async with running(folder, store_server) as (it, agent):
        with store_server.client() as client:
            client.set(keys.spec(RUN), JUNK)
        await train(it, agent, steps=3)
        assert it.shell.leads
