import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_base import redis_client
from holdfast_base.stream_reader import order_of
from holdfast_core import coordinator
from holdfast_daemon.incidents.incident_folder import read_recording
from holdfast_daemon.leadership import run_shell
from holdfast_daemon.leadership.missing_events import after_gap
from holdfast_daemon.leadership.run_lease import RunLease
from holdfast_daemon.leadership.run_store import RunStore
from holdfast_daemon.replay.replaying import replay
from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.running_daemons import running
from tests.support.coroutines import PATIENCE_S, until
from tests.support.fake_agent import NODE, RUN, SPEC, FakeAgent
from tests.support.memory_store import MemoryStore
from tests.support.run_keys import KnownKey, sealed, sealed_spec
from tests.support.shells import LEASE_S, Store, daemon, publish_spec, stored_incidents, stored_record, train
from tests.support.store_server import StoreServer
from tests.support.virtual_time import on_virtual_time


def published() -> MemoryStore:
    """Return a store that has the spec of the run."""
    made = MemoryStore()
    publish_spec(made)
    return made


@on_virtual_time
async def test_a_run_is_started_trains_and_ends(folder: Path) -> None:
    memory = published()
    async with daemon(folder, memory) as it, FakeAgent(memory) as agent:
        await until(lambda: agent.state.generation == 1, "the generation has started")
        (start,) = agent.commands
        assert start.start == store.StartGeneration(
            first_rank=0, ranks=2, world_size=2, rendezvous_node=NODE, source=store.SOURCE_SEED, step=-1
        )
        assert start.id
        assert start.fence > 0
        await train(it, agent, steps=2)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        record = stored_record(memory)
        assert record is not None
        assert (record.generation, list(record.nodes), record.fence) == (1, [NODE], start.fence)
        for rank in range(2):
            agent.end(rank, code=0)
        await until(lambda: agent.outcome, "the agent knows of the end")
        assert agent.outcome == "finished"
        await asyncio.wait_for(it.task, run_shell.LINGER_S + 5.0)
        with memory.client() as client:
            assert client.smembers(keys.RUNS) == set()
    assert agent.kinds() == ["start", "finish"]
    assert {command.instance for command in agent.commands} == {SPEC.instance}
    assert stored_incidents(memory) == []


@on_virtual_time
async def test_a_new_leader_judges_nothing_while_it_can_read_no_state_of_a_node(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = published()
    async with FakeAgent(memory) as agent:
        async with daemon(folder, memory) as it:
            await train(it, agent, steps=2)
            await it.until_phase(store.RUN_PHASE_RUNNING)
        publish = agent.link.publish_state

        async def publish_of_another_version(state: store.NodeState) -> None:
            with memory.client() as client:
                client.set(keys.node(RUN, NODE), sealed(keys.node(RUN, NODE), state, run=RUN))

        agent.link.publish_state = publish_of_another_version  # type: ignore[method-assign]
        await asyncio.sleep(1.0)  # the last good state is replaced
        async with daemon(folder, memory) as it:
            await until(lambda: "it judges nothing until it can" in caplog.text, "the daemon has said so")
            await asyncio.sleep(60.0)
            assert stored_incidents(memory) == []
            agent.link.publish_state = publish  # type: ignore[method-assign]
            await train(it, agent, steps=1)
    assert agent.kinds() == ["start"]


@on_virtual_time
async def test_a_killed_rank_is_an_incident_and_the_run_comes_back(folder: Path) -> None:
    memory = published()
    async with running(folder, memory, steps=3) as (it, agent):
        agent.end(1, signal=9)
        await until(lambda: agent.state.generation == 2, "the next generation has started")
        assert agent.kinds() == ["start", "gather_evidence", "stop", "start"]
        assert (agent.commands[3].start.source, agent.commands[3].start.step) == (store.SOURCE_MEMORY, 2)
        assert len({command.id for command in agent.commands}) == 4
        await train(it, agent)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        await until(lambda: stored_incidents(memory)[0].state == store.INCIDENT_STATE_RECOVERED, "it is over")
    (incident,) = stored_incidents(memory)
    assert (incident.id, list(incident.verdict.culprits), list(incident.evidence)) == ("0001-dead-rank", [1], ["a"])
    assert (incident.generation, incident.reached_step, incident.resumed_step) == (1, 2, 2)
    lines = [json.loads(line) for line in (folder / f"incidents-{RUN}.jsonl").read_text().splitlines()]
    assert {line["id"] for line in lines} == {"0001-dead-rank"}
    assert (lines[0]["state"], lines[-1]["state"]) == ("open", "recovered")
    recorded = read_recording(folder / "incidents" / RUN / incident.id)
    assert recorded.incident.state == store.INCIDENT_STATE_RECOVERED
    assert replay(recorded).agrees


@on_virtual_time
async def test_a_store_that_comes_back_empty_gets_the_record_and_the_incidents_again(folder: Path) -> None:
    memory = published()
    async with running(folder, memory, steps=2) as (it, agent):
        agent.refuse_checkpoint(1)
        await until(lambda: stored_incidents(memory), "the incident is kept")
        before = stored_record(memory)
        assert before is not None
        memory.kill()
        await until(lambda: not it.shell.store_up, "the daemon knows that the store is unreachable")
        agent.refuse_checkpoint(2)
        memory.start()
        await until(lambda: len(stored_incidents(memory)) == 2, "both incidents are there")
        await until(lambda: it.shell.store_up, "the daemon knows that the store is back")
        assert it.shell.leads
        after = stored_record(memory)
        assert after is not None
        assert (after.phase, after.generation, list(after.nodes)) == (store.RUN_PHASE_RUNNING, 1, [NODE])
        assert after.fence > before.fence
        with memory.client() as client:
            assert client.smembers(keys.RUNS) == {RUN.encode()}
            assert client.get(keys.spec(RUN)) == sealed_spec(SPEC)
        await train(it, agent, steps=2)
    assert agent.kinds() == ["start"]


@on_virtual_time
async def test_a_store_that_comes_back_empty_with_its_clock_behind_is_read_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = published()
    async with running(folder, memory, steps=20) as (it, agent):
        before = stored_record(memory)
        assert before is not None
        memory.kill()
        await until(lambda: not it.shell.store_up, "the daemon knows that the store is unreachable")
        memory.turn_back()
        memory.start()
        await until(lambda: stored_record(memory), "the record is there again")
        agent.refuse_checkpoint(1)
        await until(lambda: stored_incidents(memory), "the event is read")
        agent.end(1, signal=9)
        await until(lambda: agent.state.generation == 2, "the agent reads the commands of the emptied store")
        assert agent.commands[-1].fence > before.fence
        after = stored_record(memory)
        assert after is not None
        assert order_of(after.last_event_id) < order_of(before.last_event_id)
    assert agent.kinds() == ["start", "gather_evidence", "stop", "start"]
    assert caplog.text.count("the store has lost the run's data") == 1


@on_virtual_time
async def test_after_an_outage_the_leader_writes_again_what_the_store_may_have_lost(folder: Path) -> None:
    memory = published()
    async with running(folder, memory, steps=2) as (it, agent):
        agent.refuse_checkpoint(1)
        await until(lambda: stored_incidents(memory), "the incident is kept")
        fence = it.record.fence
        memory.refused.add("look")
        await until(lambda: not it.shell.store_up, "the daemon knows that the store is unreachable")
        memory.delete(keys.incidents(RUN))  # a replica that has become the master may lack what was written last
        memory.refused.clear()
        await until(lambda: stored_incidents(memory), "the incident is there again")
        assert it.record.fence == fence


def summaries(*steps: int) -> list[store.Event]:
    """Return events of one node with the summaries of steps."""
    return [store.Event(node=NODE, step_summary=store.StepSummary(step=step)) for step in steps]


def test_after_a_gap_no_step_counts_that_may_be_incomplete() -> None:
    begun = coordinator.begin(SPEC, store.CoordinatorState(run=RUN, nodes=["a", "b"]))
    state = dataclasses.replace(begun, counted_steps={"a": 12}, pending_steps={9: store.StepSummary(step=9)})
    after = after_gap(state, summaries(7, 8, 9))
    assert (after.counted_steps, after.pending_steps) == ({"a": 12, "b": 9}, {})
    after = after_gap(state, [store.Event(checkpoint_failed={})])
    assert (after.counted_steps, after.pending_steps) == ({"a": 14, "b": 14}, {})  # b sends its part of step 12
    after = after_gap(begun, [store.Event(checkpoint_failed={})])
    assert (after.counted_steps, after.pending_steps) == ({}, {})


@on_virtual_time
async def test_events_that_are_gone_are_counted_and_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = published()
    async with running(folder, memory, steps=2) as (it, agent):
        agent.refuse_checkpoint(1)
        await until(lambda: stored_incidents(memory), "the leader reads events")
        await asyncio.sleep(1.0)  # all of them
        memory.refused.add("look")
        await until(lambda: not it.shell.store_up, "the daemon knows that the store is unreachable")
        for step in range(2, 10):
            event = store.Event(node=NODE, checkpoint_failed=store.CheckpointFailed(step=step))
            memory.xadd(keys.events(RUN), {"event": sealed(keys.events(RUN), event, run=RUN)})
        memory.xtrim(keys.events(RUN), 1)
        memory.refused.clear()
        await until(lambda: it.shell.counters.events_missed, "the gap is counted")
        assert it.shell.counters.events_missed == 7
    assert caplog.text.count("7 events were removed from the store before the leader read them") == 1


async def take_over(folder: Path, server: Store) -> None:
    publish_spec(server)
    async with running(folder, server, steps=2, name="a") as (first, agent):
        agent.refuse_checkpoint(1)
        await until(lambda: stored_incidents(server), "the incident is kept")
        async with daemon(folder, server, "b") as second:
            await until(lambda: second.shell.store_up, "the standby has asked for the lease")
            await first.die()
            await until(lambda: second.shell.leads, "the standby leads")
            await second.until_phase(store.RUN_PHASE_RUNNING)
            assert second.record.generation == 1
            assert second.shell.state is not None
            assert list(second.shell.state.incidents) == ["0001-checkpoint-failed"]
            agent.end(0, signal=9)
            await until(lambda: agent.state.generation == 2, "the next generation has started")
            assert agent.commands[-1].fence > agent.commands[0].fence
    assert agent.kinds() == ["start", "gather_evidence", "stop", "start"]


@on_virtual_time
async def test_a_standby_takes_over_from_a_leader_that_died(folder: Path) -> None:
    memory = MemoryStore()
    await take_over(folder, memory)


async def test_a_standby_takes_over_by_the_leases_of_a_real_server(store_server: StoreServer, folder: Path) -> None:
    await take_over(folder, store_server)


@on_virtual_time
async def test_a_standby_leads_when_the_lease_has_lapsed_and_not_before(folder: Path) -> None:
    memory = published()
    time_s = asyncio.get_running_loop().time
    async with daemon(folder, memory, "a") as first, daemon(folder, memory, "b") as second:
        await asyncio.sleep(10 * LEASE_S)
        assert (first.shell.leads, second.shell.leads) == (True, False)
        await first.die()
        lapses_s = time_s() + memory.pttl(keys.leader(RUN)) / 1000
        assert lapses_s - time_s() >= LEASE_S / 2  # it is renewed at a third of its length
        await until(lambda: second.shell.leads, "the standby leads")
        assert lapses_s <= time_s() <= lapses_s + LEASE_S / 3  # a standby looks four times in a lease


@on_virtual_time
async def test_a_standby_asks_for_the_lease_often_and_for_all_else_seldom(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = published()
    async with running(folder, memory, steps=2, name="a") as (first, agent):
        asked = dict.fromkeys(("hgetall", "look_at_lease"), 0)
        for name in asked:
            command = getattr(memory, name)

            def counted(*arguments: Any, name: str = name, command: Any = command) -> Any:
                asked[name] += 1
                return command(*arguments)

            monkeypatch.setattr(memory, name, counted)
        async with daemon(folder, memory, "b") as second:
            await asyncio.sleep(10 * run_shell.FOLLOW_S)
            assert asked["hgetall"] <= 11  # incidents, which the leader reads once
            assert asked["look_at_lease"] >= 10 * run_shell.FOLLOW_S / LEASE_S * 4
            assert second.record.generation == 1
            await first.die()
            await until(lambda: second.shell.leads, "the standby leads")
        assert agent.kinds() == ["start"]


@on_virtual_time
async def test_a_leader_that_stands_down_lets_the_standby_in_immediately(folder: Path) -> None:
    memory = published()
    async with daemon(folder, memory, "a", lease_s=600.0) as first:
        await until(lambda: first.shell.leads, "the first leads")
        async with daemon(folder, memory, "b", lease_s=0.5) as second:
            await until(lambda: second.shell.store_up, "the standby has asked for the lease")
            await first.shell.stand_down()
            await first.die()
            await until(lambda: second.shell.leads, "the second leads")


@on_virtual_time
async def test_a_leader_that_stood_down_does_not_take_the_lease_again(folder: Path) -> None:
    memory = published()
    async with daemon(folder, memory) as it:
        await until(lambda: it.shell.leads, "it leads")
        await it.shell.stand_down()
        await asyncio.wait([it.task], timeout=0.5)  # some ticks, if it took any
        assert not it.shell.leads


@on_virtual_time
async def test_a_leader_whose_lease_was_taken_stands_by_and_returns_with_what_its_successor_left(folder: Path) -> None:
    memory = published()
    async with running(folder, memory) as (it, _agent):
        usurper = RunStore(memory.connect(), RUN, "usurper", KnownKey(RUN))
        usurper.serve("i")
        memory.delete(keys.leader(RUN))
        assert await usurper.lease.acquire(600.0, 0)
        await until(lambda: not it.shell.leads, "the old leader knows that it has lost the lease")
        left = store.CoordinatorState()
        left.CopyFrom(it.record)
        left.restarts_total, left.fence = 7, usurper.lease.fence
        await usurper.save(left)
        await usurper.lease.release()
        await until(lambda: it.shell.leads, "it leads again")
        await until(lambda: it.record.restarts_total == 7, "it continues from the record of its successor")


async def test_a_shell_that_is_cancelled_ends_whatever_it_is_doing(store_server: StoreServer, folder: Path) -> None:
    publish_spec(store_server)
    for moment in range(20):
        async with daemon(folder, store_server) as it:
            for _ in range(moment):
                await asyncio.sleep(0)
            await asyncio.wait_for(redis_client.end(it.task), PATIENCE_S)
            assert it.task.cancelled()


@on_virtual_time
async def test_an_operators_checkpoint_is_refused_while_no_rank_is_known(folder: Path) -> None:
    memory = published()
    async with running(folder, memory) as (it, agent):
        await agent.die()
        await until(lambda: it.shell.state and not it.shell.state.nodes, "its lease has lapsed")
        request = asyncio.ensure_future(it.shell.requests.checkpoint())
        await asyncio.wait([request, it.task], return_when=asyncio.FIRST_COMPLETED, timeout=10)
        if it.task.done():
            request.cancel()
            it.task.result()
        assert request.result().step == -1
        assert request.result().reason


@on_virtual_time
async def test_a_run_that_is_listed_before_its_spec_is_there_waits_for_it(folder: Path) -> None:
    memory = MemoryStore()
    async with daemon(folder, memory) as it:
        await until(lambda: it.task.done() or it.shell.counters.operations > 2, "it has looked for the spec, and again")
        publish_spec(memory)
        await until(lambda: it.task.done() or it.shell.leads, "it leads")  # it has the state before that
        await it.until_phase(store.RUN_PHASE_WAITING)


@on_virtual_time
async def test_a_lease_is_held_while_it_is_renewed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = published()
    seen: list[tuple[int, bool]] = []
    acquire = RunLease.acquire

    async def observed(self: RunLease, lease_s: float, lowest_fence: int) -> bool:
        is_held = await acquire(self, lease_s, lowest_fence)
        seen.append((self.fence, it.shell.leads))
        return is_held

    monkeypatch.setattr(RunLease, "acquire", observed)
    async with daemon(folder, memory) as it:
        # Two of one fence: the lease has not lapsed in between.
        await until(lambda: it.task.done() or len(seen) > len({fence for fence, _ in seen}), "the lease is renewed")
    assert [leads for _, leads in seen[:1]] == [False]
    assert seen[-1][1]


@on_virtual_time
async def test_a_store_that_fails_while_a_daemon_becomes_leader_is_asked_again(folder: Path) -> None:
    memory = published()
    memory.refused.add("hgetall")  # incidents cannot be read
    async with daemon(folder, memory) as it:
        await until(lambda: it.task.done() or it.shell.counters.failures > 1, "it has tried")
        memory.refused.clear()
        await it.until_phase(store.RUN_PHASE_WAITING)
        assert stored_record(memory) is not None


@on_virtual_time
async def test_a_store_that_fails_when_a_run_retires_does_not_end_the_daemon(folder: Path) -> None:
    memory = published()
    async with daemon(folder, memory) as it, FakeAgent(memory) as agent:
        await train(it, agent)
        it.shell.requests.stop()
        await until(lambda: agent.outcome, "the agent knows of the end")
        await until(lambda: it.shell.state and not it.shell.state.nodes, "the agent has left")
        memory.refused.add("srem")  # the run cannot be taken off the list
        await asyncio.sleep(run_shell.LINGER_S + 5.0)
        assert it.shell.counters.failures > 1
        assert not it.task.done()
        memory.refused.clear()
        await asyncio.wait_for(it.task, 1.0)
        assert memory.smembers(keys.RUNS) == set()


@on_virtual_time
async def test_a_daemon_that_is_back_within_its_lease_sends_commands_that_are_not_taken_for_old_ones(
    folder: Path,
) -> None:
    memory = published()
    async with FakeAgent(memory) as agent:
        async with daemon(folder, memory, lease_s=60.0) as first:
            await train(first, agent)
            await first.until_phase(store.RUN_PHASE_RUNNING)
        async with daemon(folder, memory, lease_s=60.0) as second:
            await until(lambda: second.shell.leads, "the same name holds the same lease")
            second.shell.requests.stop()
            await until(lambda: agent.outcome, "the agent has the command")
        commands = agent.commands
    assert [command.WhichOneof("kind") for command in commands] == ["start", "persist_snapshot", "finish"]
    assert len({command.fence for command in commands}) == 1
    assert len({command.id for command in commands}) == len(commands)
