import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from holdfast_base.redis_client import connect
from holdfast_core import coordinator
from holdfast_daemon.clock import Clock
from holdfast_daemon.console.watched import WatchedDaemon
from holdfast_daemon.control import control_server as control
from holdfast_daemon.control.control_server import ControlService
from holdfast_daemon.leadership.run_shell import RunShell
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_proto import keys
from holdfast_proto.v1 import control_pb2 as pb
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.fault_pb2 import Fault
from tests.daemon.running_daemons import operating, running
from tests.support.coroutines import PATIENCE_S, until
from tests.support.fake_agent import NODE, RUN, SPEC, FakeAgent
from tests.support.run_keys import KnownKey, write_key
from tests.support.shells import Daemon, daemon, options, publish_spec, train
from tests.support.store_server import StoreServer


def idle_shell(folder: Path, run: str = RUN) -> RunShell:
    """A shell that is never run."""
    url = f"unix://{folder}/no-store.sock"
    write_key(folder, run)
    return RunShell(connect(url), run, options(folder, url), Clock(), TickMetrics(CollectorRegistry()))


def leading_shell(folder: Path) -> RunShell:
    """A shell that leads and is never run."""
    shell = idle_shell(folder)
    shell.state, shell.leadership.leads, shell.store_up = coordinator.begin(SPEC), True, True
    return shell


def service(*shells: RunShell) -> ControlService:
    return ControlService({shell.run_name: shell for shell in shells}, Clock())


@contextlib.asynccontextmanager
async def operated(folder: Path, server: StoreServer, **options: Any) -> AsyncIterator[tuple[Daemon, Any, FakeAgent]]:
    """Yield the daemon of a run that trains, an operator's stub of it, and the agent."""
    publish_spec(server, injection_allowed=True)
    async with running(folder, server, steps=3, **options) as (it, agent), operating(folder, service(it.shell)) as stub:
        yield it, stub, agent


@contextlib.contextmanager
def refused(code: grpc.StatusCode, reason: str) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert (caught.value.code(), caught.value.details()) == (code, reason)


async def test_the_socket_is_private(folder: Path) -> None:
    async with operating(folder, service()):
        assert (folder / "control.sock").stat().st_mode & 0o777 == 0o600


async def test_a_socket_that_cannot_be_had_names_the_setting(folder: Path) -> None:
    with pytest.raises(OSError, match="--control"):
        await control.serve(ControlService({}, Clock()), folder / ("x" * 120))


async def test_an_unknown_run_is_answered_with_those_that_are_known(folder: Path) -> None:
    unknown = "no run 'c': this daemon knows a, b: use --run"
    async with operating(folder, service(idle_shell(folder, "b"), idle_shell(folder, "a"))) as stub:
        for call, request in (
            (stub.GetStatus, pb.GetStatusRequest(run="c")),
            (stub.ListIncidents, pb.ListIncidentsRequest(run="c")),
            (stub.TakeCheckpoint, pb.TakeCheckpointRequest(run="c")),
            (stub.StopRun, pb.StopRunRequest(run="c")),
        ):
            with refused(grpc.StatusCode.NOT_FOUND, unknown):
                await call(request)


async def test_without_a_name_the_only_run_is_meant(folder: Path) -> None:
    async with operating(folder, service(idle_shell(folder))) as stub:
        assert (await stub.GetStatus(pb.GetStatusRequest())).run == RUN


async def test_without_a_name_among_several_or_none_the_operator_is_asked_for_one(folder: Path) -> None:
    async with operating(folder, service(idle_shell(folder, "b"), idle_shell(folder, "a"))) as stub:
        with refused(grpc.StatusCode.NOT_FOUND, "name a run: this daemon knows a, b: use --run"):
            await stub.GetStatus(pb.GetStatusRequest())
    async with operating(folder, service()) as stub:
        with refused(grpc.StatusCode.NOT_FOUND, "name a run: this daemon knows none: use --run"):
            await stub.GetStatus(pb.GetStatusRequest())


async def test_a_daemon_that_knows_nothing_yet_says_so(folder: Path) -> None:
    async with operating(folder, service(idle_shell(folder))) as stub:
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.run, status.leader, status.store_up) == (RUN, False, False)
        assert (status.newest_step, status.newest_checkpoint, status.newest_snapshot) == (-1, -1, -1)
        assert list((await stub.ListIncidents(pb.ListIncidentsRequest())).incidents) == []


async def test_a_standby_answers_questions_and_refuses_requests(folder: Path) -> None:
    shell = idle_shell(folder)
    shell.store_up = True
    shell.state = coordinator.begin(SPEC)
    reason = "run run: another daemon leads it: try again"
    async with operating(folder, service(shell)) as stub:
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.leader, status.phase) == (False, store.RUN_PHASE_WAITING)
        with refused(grpc.StatusCode.FAILED_PRECONDITION, reason):
            await stub.TakeCheckpoint(pb.TakeCheckpointRequest())
        with refused(grpc.StatusCode.FAILED_PRECONDITION, reason):
            await stub.StopRun(pb.StopRunRequest())


async def test_an_incident_is_acknowledged_and_one_that_is_unknown_refused(
    store_server: StoreServer, folder: Path
) -> None:
    async with operated(folder, store_server) as (it, stub, _agent):
        assert it.shell.state is not None
        known = store.Incident(id="0001-straggler", run=RUN, state=store.INCIDENT_STATE_NOTED)
        it.shell.state = replace(it.shell.state, incidents={known.id: known})
        with refused(grpc.StatusCode.NOT_FOUND, "run run has no incident '7': `holdfast incidents` lists them"):
            await stub.AcknowledgeIncident(pb.AcknowledgeIncidentRequest(incident="7"))
        await stub.AcknowledgeIncident(pb.AcknowledgeIncidentRequest(incident=known.id))
        answer = await stub.ListIncidents(pb.ListIncidentsRequest())
        assert answer.incidents[0].acknowledged_unix_s > 0.0


@pytest.mark.parametrize("reason", ["", "too late"])
async def test_a_fault_is_answered_when_its_rank_has_answered(
    store_server: StoreServer, folder: Path, reason: str
) -> None:
    fault = Fault(kind="kill", rank=1, step=-1)
    async with operated(folder, store_server) as (_it, stub, agent):
        asked = asyncio.ensure_future(stub.InjectFault(pb.InjectFaultRequest(fault=fault)))
        await until(lambda: "inject_fault" in agent.kinds(), "the command has arrived")
        assert not asked.done()
        if reason:
            agent.link.emit(store.Event(generation=1, fault_refused=store.FaultRefused(fault=fault, reason=reason)))
            with refused(grpc.StatusCode.FAILED_PRECONDITION, reason):
                await asked
        else:
            agent.link.emit(store.Event(generation=1, fault_injected=store.FaultInjected(fault=fault)))
            await asked


async def test_stacks_are_answered_when_the_node_of_the_ranks_has_sent_them(
    store_server: StoreServer, folder: Path
) -> None:
    async with operated(folder, store_server) as (_it, stub, agent):
        asked = asyncio.ensure_future(stub.TakeStacks(pb.TakeStacksRequest(ranks=[1, 1], native=True)))
        await until(lambda: "take_stacks" in agent.kinds(), "the command has arrived")
        assert not asked.done()
        command = next(one.take_stacks for one in agent.commands if one.HasField("take_stacks"))
        assert (list(command.ranks), command.native) == ([1], True)
        taken = store.StacksTaken(request=command.request, ranks=[store.RankStacks(rank=1, problem="x")])
        agent.link.emit(store.Event(generation=1, stacks_taken=taken))
        [node] = (await asked).nodes
        assert node.taken == taken
        with pytest.raises(grpc.aio.AioRpcError, match="rank 99: no such rank is alive"):
            await stub.TakeStacks(pb.TakeStacksRequest(ranks=[99]))


@pytest.mark.parametrize("problem", ["", "rank 1: the disk is full"])
async def test_a_profile_is_answered_when_its_files_are_written_or_refused(
    store_server: StoreServer, folder: Path, problem: str
) -> None:
    async with operated(folder, store_server) as (_it, stub, agent):
        for steps, patience_s, reason in (
            (0, 9.0, "steps is 0: 1 to 100 is expected"),
            (101, 9.0, "steps is 101: 1 to 100 is expected"),
            (3, math.nan, "patience_s is nan: 1 to 3600 is expected"),
        ):
            with refused(grpc.StatusCode.INVALID_ARGUMENT, reason):
                await stub.TakeProfile(pb.TakeProfileRequest(rank=1, steps=steps, patience_s=patience_s))
        asked = asyncio.ensure_future(stub.TakeProfile(pb.TakeProfileRequest(rank=1, steps=3, patience_s=60.0)))
        await until(lambda: "take_profile" in agent.kinds(), "the command has arrived")
        command = next(one.take_profile for one in agent.commands if one.HasField("take_profile"))
        assert (command.rank, command.steps, command.patience_s) == (1, 3, 60.0)
        taken = store.ProfileTaken(
            request=command.request, rank=1, files=[] if problem else ["/a/b.json.gz"], problem=problem
        )
        agent.link.emit(store.Event(generation=1, profile_taken=taken))
        if problem:
            with refused(grpc.StatusCode.FAILED_PRECONDITION, problem):
                await asked
        else:
            assert (await asked).taken == taken


async def test_incidents_come_oldest_first_and_pages_begin_with_the_newest(folder: Path) -> None:
    shell = idle_shell(folder)
    incidents = [store.Incident(id=name) for name in ("0010-hung", "0002-dead-rank", "0001-dead-rank")]
    shell.state = coordinator.begin(SPEC, None, {incident.id: incident for incident in incidents})
    async with operating(folder, service(shell)) as stub:
        answer = await stub.ListIncidents(pb.ListIncidentsRequest())
        assert [incident.id for incident in answer.incidents] == ["0001-dead-rank", "0002-dead-rank", "0010-hung"]
        for skipped, page in ((0, ["0002-dead-rank", "0010-hung"]), (2, ["0001-dead-rank"]), (4, [])):
            request = pb.ListIncidentsRequest(most_incidents=2, skip_incidents=skipped)
            answer = await stub.ListIncidents(request)
            assert ([incident.id for incident in answer.incidents], answer.count) == (page, 3)
        assert (await stub.GetStatus(pb.GetStatusRequest())).newest_incident.id == "0010-hung"


async def test_an_operator_sees_the_run_takes_a_checkpoint_and_stops_it(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with (
        daemon(folder, store_server) as it,
        operating(folder, service(it.shell)) as stub,
        FakeAgent(store_server.url) as agent,
    ):
        await until(lambda: agent.state.ranks, "the ranks have started")
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "the run is starting, not running: try again when it is"):
            await stub.TakeCheckpoint(pb.TakeCheckpointRequest())
        await train(it, agent, steps=3)
        await it.until_phase(store.RUN_PHASE_RUNNING)
        status = await stub.GetStatus(pb.GetStatusRequest())
        while not status.HasField("loss"):  # a report may take one more tick than the phase
            status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.leader, status.store_up, status.generation, status.newest_step) == (True, True, 1, 2)
        assert (status.loss, status.tokens_per_s) == (1.5, 100.0)
        assert [(rank.rank, rank.node, rank.pid) for rank in status.ranks] == [(0, NODE, 100), (1, NODE, 101)]
        short = await stub.GetStatus(pb.GetStatusRequest(most_ranks=1, search=NODE, skip_ranks=1))
        assert ([rank.rank for rank in short.ranks], [group.count for group in short.other_ranks]) == ([1], [1])
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "the search '3-1' ends before it begins: use 1-3"):
            await stub.GetStatus(pb.GetStatusRequest(search="3-1"))
        accepted = await stub.TakeCheckpoint(pb.TakeCheckpointRequest())
        assert accepted.step > 3
        await until(lambda: "take_checkpoint" in agent.kinds(), "the agent has the command")
        assert agent.commands[-1].take_checkpoint.step == accepted.step
        await stub.StopRun(pb.StopRunRequest())
        await until(lambda: agent.outcome, "the agent knows of the end")
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.phase, status.outcome) == (store.RUN_PHASE_FAILED, "stopped by an operator")


async def test_while_the_store_is_unreachable_what_is_known_is_shown_and_a_checkpoint_is_refused(
    store_server: StoreServer, folder: Path
) -> None:
    async with operated(folder, store_server) as (it, stub, _agent):
        store_server.kill()
        await until(lambda: not it.shell.store_up, "the daemon knows that the store is unreachable")
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.store_up, status.phase, status.newest_step) == (False, store.RUN_PHASE_RUNNING, 2)
        assert len(status.ranks) == 2
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "run run: the store is unreachable: try again"):
            await stub.TakeCheckpoint(pb.TakeCheckpointRequest(), timeout=PATIENCE_S)


async def test_an_operator_who_waits_for_a_checkpoint_gets_an_error_when_another_daemon_takes_over(
    store_server: StoreServer, folder: Path
) -> None:
    async with operated(folder, store_server, lease_s=600.0) as (it, stub, _agent):
        with store_server.client() as operator:
            seal = KnownKey(RUN).read().seal
            # In one step: the leader would take a free lease again.
            operator.set(keys.leader(RUN), seal.sign_text(keys.leader(RUN), "usurper 1"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.TakeCheckpoint(pb.TakeCheckpointRequest(), timeout=PATIENCE_S)
        assert not it.shell.leads
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_the_daemon_says_how_it_is_itself(folder: Path) -> None:
    clock, shells = Clock(), {RUN: leading_shell(folder)}
    watched = WatchedDaemon(
        options=options(folder, "unix:///none"),
        runs=shells,
        clock=clock,
        ticks=TickMetrics(CollectorRegistry()),
        loop=asyncio.get_running_loop(),
        started_unix_s=clock.now() - 5.0,
    )
    async with operating(folder, ControlService(shells, clock, watched)) as stub:
        seen = await stub.GetDaemon(pb.GetDaemonRequest())
    assert (seen.store_up, list(seen.leader_of), seen.ticks) == (True, [RUN], 0)
    assert seen.uptime_s >= 5.0
    assert {one.name for one in seen.detectors} >= {"straggler", "silent_corruption"}
    assert not seen.HasField("tick_p50_s")


class Broken(dict[str, RunShell]):
    """Shells whose state cannot be read."""

    def __contains__(self, _: object) -> bool:
        raise ValueError("a bug\nof two lines")


async def test_a_request_that_raises_is_answered_in_one_line_and_harms_no_other(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "GetStatus failed in the daemon (ValueError: a bug of two lines): see the daemon's log"
    async with operating(folder, ControlService(Broken(), Clock())) as stub:
        for _ in range(2):
            with refused(grpc.StatusCode.INTERNAL, reason):
                await stub.GetStatus(pb.GetStatusRequest(run="x"))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.StopRun(pb.StopRunRequest(run="x"))
    failed = [record for record in caplog.records if "GetStatus failed" in record.getMessage()]
    assert [bool(record.exc_info) for record in failed] == [True, False]


@pytest.mark.parametrize("grace_s", [float("nan"), float("inf"), -1.0])
async def test_a_stop_within_an_impossible_time_is_refused(folder: Path, grace_s: float) -> None:
    async with operating(folder, service(leading_shell(folder))) as stub:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, f"grace_s is {grace_s}: 0 to 1000000000 is expected"):
            await stub.StopRun(pb.StopRunRequest(grace_s=grace_s))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="", rank=0),
        Fault(kind="a b", rank=0),
        Fault(kind="kill", step=-2),
        Fault(kind="kill", phase=99),  # type: ignore[arg-type]
        Fault(kind="stop", duration_s=float("nan")),
        Fault(kind="slow", factor=float("inf")),
    ],
    ids=str,
)
async def test_an_impossible_fault_is_refused(folder: Path, fault: Fault) -> None:
    async with operating(folder, service(leading_shell(folder))) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.InjectFault(pb.InjectFaultRequest(fault=fault))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "\n" not in (caught.value.details() or "")


async def test_requests_on_which_the_core_fails_are_answered_with_an_error(
    store_server: StoreServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operated(folder, store_server) as (it, stub, agent):
        step = coordinator.step

        def fragile(state: Any, now: float, observation: Any, *rest: Any) -> Any:
            if observation.requests:
                raise KeyError("bug")
            return step(state, now, observation, *rest)

        monkeypatch.setattr(coordinator, "step", fragile)
        reason = "the daemon failed on this request: its log says why"
        for call, request in (
            (stub.TakeCheckpoint, pb.TakeCheckpointRequest()),
            (stub.StopRun, pb.StopRunRequest()),
            (stub.InjectFault, pb.InjectFaultRequest(fault=Fault(kind="kill", step=-1))),
        ):
            with refused(grpc.StatusCode.FAILED_PRECONDITION, reason):
                await call(request)
        await train(it, agent)
        kept = folder / "failures" / RUN
        await until((kept / "core.json").exists, "what the core failed on is kept")
        assert "KeyError: 'bug'" in (kept / "traceback.txt").read_text()
        assert (await stub.GetStatus(pb.GetStatusRequest())).leader
