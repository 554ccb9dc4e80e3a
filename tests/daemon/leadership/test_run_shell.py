import asyncio
import json
from pathlib import Path

import pytest

from holdfast_daemon.core.model import CheckpointAnswered
from holdfast_daemon.incidents.folder import read_recording
from holdfast_daemon.incidents.replay import replay
from holdfast_daemon.leadership import run_shell
from holdfast_daemon.leadership.run_store import RunStore
from holdfast_proto import keys, redis_client
from holdfast_proto.redis_client import connect
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import until
from tests.support.fake_agent import NODE, RUN, SPEC, FakeAgent
from tests.support.shells import daemon, publish_spec, stored_incidents, stored_record, train
from tests.support.store_server import StoreServer


async def test_a_run_is_started_trains_and_ends(
    store_server: StoreServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_shell, "LINGER_S", 0.0)
    publish_spec(store_server)
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await until(lambda: agent.state.generation == 1, "the generation has started")
        (start,) = agent.commands
        assert start.start == store.StartGeneration(
            first_rank=0, ranks=2, world_size=2, rendezvous_node=NODE, source=store.SOURCE_SEED, step=-1
        )
        assert start.id
        assert start.fence > 0
        assert start.instance == SPEC.instance
        await train(it, agent, steps=2)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        record = stored_record(store_server)
        assert record is not None
        assert (record.generation, list(record.nodes), record.fence) == (1, [NODE], start.fence)
        for rank in range(2):
            agent.end(rank, code=0)
        await until(lambda: agent.outcome, "the agent knows of the end")
        assert agent.outcome == "finished"
        await asyncio.wait_for(it.task, 30)
        with store_server.client() as client:
            assert client.smembers(keys.RUNS) == set()
    assert agent.kinds() == ["start", "finish"]
    assert {command.instance for command in agent.commands} == {SPEC.instance}
    assert stored_incidents(store_server) == []


async def test_a_killed_rank_is_an_incident_and_the_run_comes_back(store_server: StoreServer, folder: Path) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await train(it, agent, steps=3)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        agent.end(1, signal=9)
        await until(lambda: agent.state.generation == 2, "the next generation has started")
        assert agent.kinds() == ["start", "gather_evidence", "stop", "start"]
        assert (agent.commands[3].start.source, agent.commands[3].start.step) == (store.SOURCE_MEMORY, 2)
        assert len({command.id for command in agent.commands}) == 4
        await train(it, agent)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        await until(lambda: stored_incidents(store_server)[0].state == store.INCIDENT_STATE_RECOVERED, "it is over")
    (incident,) = stored_incidents(store_server)
    assert incident.id == "0001-dead-rank"
    assert list(incident.verdict.culprits) == [1]
    assert (incident.generation, incident.reached_step, incident.resumed_step) == (1, 2, 2)
    assert list(incident.evidence) == ["a"]
    lines = [json.loads(line) for line in (folder / f"incidents-{RUN}.jsonl").read_text().splitlines()]
    assert {line["id"] for line in lines} == {"0001-dead-rank"}
    assert lines[0]["state"] == "open"
    assert lines[-1]["state"] == "recovered"
    recorded = read_recording(folder / "incidents" / RUN / incident.id)
    assert recorded.incident.state == store.INCIDENT_STATE_RECOVERED
    assert replay(recorded).agrees


async def test_a_store_that_comes_back_empty_gets_the_record_and_the_incidents_again(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await train(it, agent, steps=2)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        agent.refuse_checkpoint(1)
        await until(lambda: stored_incidents(store_server), "the incident is kept")
        before = stored_record(store_server)
        assert before is not None
        store_server.kill()
        await until(lambda: not it.shell.store_up, "the daemon knows that the store is unreachable")
        agent.refuse_checkpoint(2)
        store_server.start()
        await until(lambda: len(stored_incidents(store_server)) == 2, "both incidents are there")
        await until(lambda: it.shell.store_up, "the daemon knows that the store is back")
        assert it.shell.leads
        after = stored_record(store_server)
        assert after is not None
        assert (after.phase, after.generation, list(after.nodes)) == (store.RUN_PHASE_RUNNING, 1, [NODE])
        assert after.fence > before.fence
        with store_server.client() as client:
            assert client.smembers(keys.RUNS) == {RUN.encode()}
            assert client.get(keys.spec(RUN)) == SPEC.SerializeToString()
        await train(it, agent, steps=2)
    assert agent.kinds() == ["start"]


async def test_a_standby_takes_over_from_a_leader_that_died(store_server: StoreServer, folder: Path) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server, "a") as first, FakeAgent(store_server.url) as agent:
        await train(first, agent, steps=2)
        await first.until_phase(store.RUN_PHASE_RUNNING)
        agent.refuse_checkpoint(1)
        await until(lambda: stored_incidents(store_server), "the incident is kept")
        async with daemon(folder, store_server, "b") as second:
            await until(lambda: second.shell.store_up, "the standby has asked for the lease")
            assert not second.shell.leads
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


async def test_a_leader_that_stands_down_lets_the_standby_in_immediately(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server, "a", lease_s=600.0) as first:
        await until(lambda: first.shell.leads, "the first leads")
        async with daemon(folder, store_server, "b", lease_s=0.5) as second:
            await until(lambda: second.shell.store_up, "the standby has asked for the lease")
            await first.shell.stand_down()
            await first.die()
            await until(lambda: second.shell.leads, "the second leads")


async def test_a_leader_that_stood_down_does_not_take_the_lease_again(store_server: StoreServer, folder: Path) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server) as it:
        await until(lambda: it.shell.leads, "it leads")
        await it.shell.stand_down()
        await asyncio.wait([it.task], timeout=0.5)  # some ticks, if it took any
        assert not it.shell.leads


async def test_a_leader_whose_lease_was_taken_stands_by_and_returns_with_what_its_successor_left(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await train(it, agent)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        client = connect(store_server.url)
        usurper = RunStore(client, RUN, "usurper")
        with store_server.client() as operator:
            operator.delete(keys.leader(RUN))
            while not await usurper.acquire(600.0, 0):  # the leader was quicker, and has it back
                operator.delete(keys.leader(RUN))
        await until(lambda: not it.shell.leads, "the old leader knows that it has lost the lease")
        left = store.CoordinatorState()
        left.CopyFrom(it.record)
        left.restarts_total, left.fence = 7, usurper.fence
        await usurper.save(left)
        await usurper.release()
        await client.aclose()
        await until(lambda: it.shell.leads, "it leads again")
        await until(lambda: it.record.restarts_total == 7, "it continues from the record of its successor")


async def test_a_shell_that_is_cancelled_ends_whatever_it_is_doing(store_server: StoreServer, folder: Path) -> None:
    publish_spec(store_server)
    for moment in range(20):
        async with daemon(folder, store_server) as it:
            for _ in range(moment):
                await asyncio.sleep(0)
            await asyncio.wait_for(redis_client.end(it.task), 5)
            assert it.task.cancelled()


async def test_an_operators_stop_ends_the_run(store_server: StoreServer, folder: Path) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await train(it, agent)
        it.shell.requests.stop()
        await it.until_phase(store.RUN_PHASE_FAILED)
        await until(lambda: agent.outcome, "the agent has the command")
        assert agent.outcome == "stopped by an operator"


async def test_an_operators_checkpoint_is_set_for_a_step_that_no_rank_has_reached(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await until(lambda: agent.state.ranks, "the ranks have started")
        early = await it.shell.requests.checkpoint()
        assert (early.step, early.reason) == (-1, "the run is starting, not running: try again when it is")
        await train(it, agent, steps=3)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        answers = await asyncio.gather(it.shell.requests.checkpoint(), it.shell.requests.checkpoint())
        await until(lambda: "take_checkpoint" in agent.kinds(), "the agent has the command")
        assert all(isinstance(answer, CheckpointAnswered) and answer.step > 3 for answer in answers)


async def test_an_operators_checkpoint_is_refused_while_no_rank_is_known(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await train(it, agent)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        await agent.die()
        with store_server.client() as operator:
            operator.delete(keys.node(RUN, NODE))  # its lease has lapsed, or the store has just come back empty
        await until(lambda: it.shell.state and not it.shell.state.nodes, "the node is gone")
        request = asyncio.ensure_future(it.shell.requests.checkpoint())
        await asyncio.wait([request, it.task], return_when=asyncio.FIRST_COMPLETED, timeout=10)
        if it.task.done():
            request.cancel()
            it.task.result()
        assert request.result().step == -1
        assert request.result().reason


async def test_a_run_that_is_listed_before_its_spec_is_there_waits_for_it(
    store_server: StoreServer, folder: Path
) -> None:
    async with daemon(folder, store_server) as it:
        await until(lambda: it.task.done() or it.shell.counters.operations > 2, "it has looked for the spec, and again")
        publish_spec(store_server)
        await until(lambda: it.task.done() or it.shell.leads, "it leads")  # it has the state before that
        await it.until_phase(store.RUN_PHASE_WAITING)


async def test_a_lease_is_held_while_it_is_renewed(
    store_server: StoreServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_spec(store_server)
    seen: list[tuple[int, bool]] = []
    acquire = RunStore.acquire

    async def observed(self: RunStore, lease_s: float, lowest_fence: int) -> bool:
        is_held = await acquire(self, lease_s, lowest_fence)
        seen.append((self.fence, it.shell.leads))
        return is_held

    monkeypatch.setattr(RunStore, "acquire", observed)
    async with daemon(folder, store_server) as it:
        # Two of one fence: the lease has not lapsed in between.
        await until(lambda: it.task.done() or len(seen) > len({fence for fence, _ in seen}), "the lease is renewed")
    assert [leads for _, leads in seen[:1]] == [False]
    assert seen[-1][1]


async def test_a_store_that_fails_while_a_daemon_becomes_leader_is_asked_again(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    with store_server.client() as operator:
        operator.execute_command("ACL SETUSER default -hgetall")  # incidents cannot be read
        try:
            async with daemon(folder, store_server) as it:
                await until(lambda: it.task.done() or it.shell.counters.failures > 1, "it has tried")
                operator.execute_command("ACL SETUSER default +hgetall")
                await it.until_phase(store.RUN_PHASE_WAITING)
                assert stored_record(store_server) is not None
        finally:
            operator.execute_command("ACL SETUSER default +hgetall")


async def test_a_store_that_is_unreachable_when_a_run_retires_does_not_end_the_daemon(
    store_server: StoreServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_spec(store_server)
    async with daemon(folder, store_server) as it, FakeAgent(store_server.url) as agent:
        await train(it, agent)
        it.shell.requests.stop()
        await until(lambda: agent.outcome, "the agent knows of the end")
        await until(lambda: it.shell.state and not it.shell.state.nodes, "the agent has left")
        store_server.kill()
        await until(lambda: not it.shell.store_up, "the daemon knows that the store is unreachable")
        monkeypatch.setattr(run_shell, "LINGER_S", 0.0)
        failures = it.shell.counters.failures
        await until(lambda: it.task.done() or it.shell.counters.failures > failures + 1, "it has tried to retire")
        store_server.start()
        await asyncio.wait_for(it.task, 30)


async def test_a_daemon_that_is_back_within_its_lease_sends_commands_that_are_not_taken_for_old_ones(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with FakeAgent(store_server.url) as agent:
        async with daemon(folder, store_server, lease_s=60.0) as first:
            await train(first, agent)
            await first.until_phase(store.RUN_PHASE_RUNNING)
        async with daemon(folder, store_server, lease_s=60.0) as second:
            await until(lambda: second.shell.leads, "the same name holds the same lease")
            second.shell.requests.stop()
            await until(lambda: agent.outcome, "the agent has the command")
        commands = agent.commands
    assert [command.WhichOneof("kind") for command in commands] == ["start", "persist_snapshot", "finish"]
    assert len({command.fence for command in commands}) == 1
    assert len({command.id for command in commands}) == len(commands)
