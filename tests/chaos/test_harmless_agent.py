"""A real agent is harmed in many ways while its ranks train, and they never notice."""

import contextlib
import resource
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from holdfast_cli.control import rank_pids
from holdfast_cli.local_run.component import Component
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.supervised_folder import NODE
from holdfast_proto import keys
from holdfast_proto.run_files import run_key
from holdfast_proto.run_key import Numbers, RunKeyFile
from holdfast_proto.v1 import store_pb2 as store
from tests.chaos.conftest import Runs, faults, until, until_all_attached, until_step
from tests.support.coroutines import wait_until
from tests.support.exposition import total
from tests.support.local_runs import resume_restart, suspend_restart

pytestmark = pytest.mark.system

ENDLESS = 100_000
"""Number of steps: more than are trained here."""
NAME = "harmless"
STRIDE = 5


@pytest.fixture(scope="module")
def run(runs: Runs) -> Iterator[LocalRun]:
    with runs.run(NAME, steps=ENDLESS, checkpoint_every=0) as local:
        until_step(local, STRIDE)
        yield local


@contextlib.contextmanager
def unharmed(local: LocalRun) -> Iterator[None]:
    """Check that the same processes train after the block, and that no incident is reported."""
    before = rank_pids(local.status())
    yield
    reached = until(local, lambda status: len(status.ranks) == len(before)).newest_step
    status = until_step(local, reached + STRIDE)
    assert rank_pids(local.status()) == before
    assert (status.restarts, faults(local)) == (0, [])


def agent_of(local: LocalRun) -> Component:
    return local.stack.component("agent")


def serving_agent(local: LocalRun) -> int | None:
    local.look()  # the agent records this
    endpoint = local.stack.endpoints().get("agent")
    return endpoint.metrics_port if endpoint else None


def metric(local: LocalRun, name: str, **labels: str) -> float:
    port = wait_until(lambda: serving_agent(local), "the agent serves")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return total(answer.read().decode(), name, **labels)


@pytest.mark.gate
@pytest.mark.safety
def test_junk_and_yesterdays_commands_in_the_stream_are_refused(run: LocalRun) -> None:
    instance = run.folder.instance
    fence, generation = 2**52, run.status().generation + 1
    start = store.StartGeneration(ranks=10**9, world_size=2 * 10**9, source=store.SOURCE_SEED, rendezvous_node=NODE)
    commands = [
        store.NodeCommand(id="1", instance="yesterday", fence=1, finish=store.FinishRun(outcome="stopped")),
        store.NodeCommand(id="2", fence=1, finish=store.FinishRun(outcome="stopped")),
        store.NodeCommand(id="3", instance=instance, generation=generation, start=start),
        store.NodeCommand(id="4", instance=instance, fence=fence, generation=generation, stop=store.StopGeneration()),
        store.NodeCommand(id="5", instance=instance, generation=generation),
        store.NodeCommand(
            id="6", instance=instance, generation=generation,
            gather_evidence=store.GatherEvidence(incident="../../../../tmp"),
        ),
    ]  # fmt: skip
    place = keys.commands(NAME, NODE)
    seal = RunKeyFile(run_key(run.paths.directory, NAME), NAME).read().seal_of(instance)
    numbers = Numbers()
    entries = [{"command": seal.close(place, command.SerializeToString(), numbers.next())} for command in commands]
    entries += [{"command": commands[3].SerializeToString()}]
    entries += [{"command": b"\xff\xff\xff\xff"}, {"nothing": b"of ours"}]
    with unharmed(run):
        before = metric(run, "holdfast_agent_refused_total", source="commands")
        with contextlib.closing(redis.Redis.from_url(run.store_url)) as client:
            for entry in entries:
                client.xadd(place, entry)  # type: ignore[arg-type]
        wait_until(
            lambda: metric(run, "holdfast_agent_refused_total", source="commands") >= before + len(entries),
            "all of them are refused",
        )
        assert metric(run, "holdfast_agent_errors_total") == 0


@pytest.mark.gate
def test_agent_that_ends_by_an_error_of_its_own_is_replaced_and_its_ranks_are_adopted(run: LocalRun) -> None:
    component, known = agent_of(run), agent_of(run).restarts
    obstacle = Path(run.paths.runtime / f"agent-{NODE}.sock")
    with unharmed(run):
        suspend_restart(run, "agent")
        component.kill()
        obstacle.unlink()
        obstacle.mkdir()  # the agent cannot serve its ranks: it fails after it has adopted them
        resume_restart(run, "agent")
        wait_until(lambda: component.restarts >= known + 3, "the agent has ended twice more")
        run.look()  # no daemon or launcher has given the run up
        obstacle.rmdir()
        wait_until(lambda: serving_agent(run), "the next agent serves")
    log = (run.paths.logs / "holdfast.log").read_text()
    lines = [line for line in log.splitlines() if "agent exited with code 1" in line]
    assert len(lines) >= 2
    assert "choose another --runtime-directory" in lines[0] or str(obstacle) in lines[0]


def test_agent_without_a_free_descriptor_takes_no_process_for_dead(run: LocalRun) -> None:
    pid = run.stack.pids().get("agent")
    assert pid is not None
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    until_all_attached(run)
    with unharmed(run):
        used = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(used, limits[1]), limits[1]))
        try:
            with _all_descriptors_taken(run):
                reached = run.status().newest_step
                until_step(run, reached + 4 * STRIDE)
                assert run.status().restarts == 0
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert run.stack.pids().get("agent") == pid


@contextlib.contextmanager
def _all_descriptors_taken(run: LocalRun) -> Iterator[None]:
    """Take all free descriptors of the agent by connections to its metrics."""
    port = wait_until(lambda: serving_agent(run), "the agent serves")
    with contextlib.ExitStack() as stack:
        for _ in range(70):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        yield


def test_a_thousand_idle_connections_to_the_metrics_do_no_harm(run: LocalRun) -> None:
    pid, port = run.stack.pids().get("agent"), wait_until(lambda: serving_agent(run), "the agent serves")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with unharmed(run), contextlib.ExitStack() as stack:
            for _ in range(1000):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            assert metric(run, "holdfast_rank_up") == 4
            assert len(list(Path(f"/proc/{pid}/task").iterdir())) < 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert run.stack.pids().get("agent") == pid
