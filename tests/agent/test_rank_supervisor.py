import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from holdfast_agent import rank_supervisor, rank_watch
from holdfast_agent.processes import agent_record, parent_client
from holdfast_agent.processes.rank import Rank
from holdfast_agent.rank_supervisor import RankSupervisor, end_marked, mark_of, sweep
from holdfast_base import processes
from holdfast_proto import black_box, keys
from holdfast_proto.rank_context import RankContext
from holdfast_proto.run_files import worker_server_socket
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1 import warm_parent_pb2 as parent_pb
from holdfast_proto.v1.agent_record_pb2 import AgentRecord, RankRecord
from tests.support.coroutines import end, until, wait_until
from tests.support.nodes import RecordedNode, make_node
from tests.support.run_keys import seal_of
from tests.support.store_server import StoreServer

pytestmark = pytest.mark.system

RANK = """
import json, os, subprocess, sys, time
from pathlib import Path
from holdfast_proto.black_box import BlackBoxWriter
from holdfast_proto.rank_context import RankContext

context = RankContext.from_environment()
box = BlackBoxWriter(
    Path(context.black_box), run=context.run, generation=context.generation, rank=int(os.environ["RANK"]), world_size=4
)
box.moment(12, 3, 99)
if sys.argv[1:] == ["leaves"]:
    box.finish()
if sys.argv[1:] == ["fails"]:
    box.last_words("ValueError: bad sample")
    print(json.dumps(dict(os.environ)))
    sys.exit(3)
helper = subprocess.Popen(["sleep", "600"])
print(helper.pid, flush=True)
time.sleep(600)
"""

START = store.StartGeneration(
    first_rank=2, ranks=2, world_size=4, rendezvous_node="node-a", source=store.SOURCE_SEED, step=-1
)
"""The start of the second of two nodes. The other one hosts the rendezvous."""


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm parents that import next to nothing, and more time for them to answer on a loaded machine."""
    monkeypatch.setattr(parent_client, "modules_to_preload", lambda command: ["string"])
    monkeypatch.setattr(rank_watch, "REAP_PATIENCE_S", 30.0)


@pytest.fixture
def rendezvous(store_server: StoreServer) -> StoreServer:
    with store_server.client() as client:
        for generation in (1, 2):
            address = f"10.0.0.7:2950{generation}".encode()
            client.set(key := keys.rendezvous("run", generation), seal_of("run").close(key, address))
    return store_server


@contextlib.asynccontextmanager
async def supervised(
    folder: Path, server: StoreServer, *arguments: str
) -> AsyncIterator[tuple[RankSupervisor, RecordedNode]]:
    """Yield a supervisor and its node. It adopts what its predecessor has left, and leaves its warm parent behind."""
    script = folder / "train.py"
    script.write_text(RANK)
    node = make_node(folder, store_url=server.url, command=("python", str(script), *arguments))
    supervisor = node.supervisor()
    saved = agent_record.load(node.options.record)
    if saved is not None:
        supervisor.adopt(saved)
    task = asyncio.create_task(supervisor.parent.run(list(node.spec.command)))
    try:
        await until(lambda: supervisor.parent.is_ready, "the warm parent is ready")
        yield supervisor, node
    finally:
        await end(task)


async def leave(supervisor: RankSupervisor) -> None:
    pid = supervisor.parent.pid
    await supervisor.stop()
    await supervisor.parent.leave()
    await gone(pid)


async def gone(*pids: int) -> None:
    await until(lambda: {processes.process_state(pid) for pid in pids} <= {"", "Z"}, f"processes {pids} are gone")


@contextlib.asynccontextmanager
async def training(
    folder: Path, server: StoreServer, *arguments: str
) -> AsyncIterator[tuple[RankSupervisor, RecordedNode]]:
    """Yield a supervisor that has started generation 1, and its node. In the end all its processes leave."""
    async with supervised(folder, server, *arguments) as (supervisor, node):
        await supervisor.start(1, START)
        yield supervisor, node
        await leave(supervisor)


def helper_of(node: RecordedNode, rank: int) -> int:
    """Return the pid of the process that the rank starts, once it has."""
    log = node.options.rank_log(node.generation, rank)
    return int(wait_until(lambda: log.read_text().strip() if log.exists() else "", "the rank has started its helper"))


async def test_rank_that_ends_before_it_is_watched_keeps_its_exit_status(folder: Path) -> None:
    node = make_node(folder)
    supervisor = node.supervisor()
    node.begin_generation(1, START)
    pid = 2**22 + 1  # no process has it
    supervisor.exits.on_reaped(parent_pb.Exited(generation=1, rank=2, pid=pid, wait_status=3 << 8))
    supervisor.exits.on_reaped(parent_pb.Exited(generation=1, rank=3, pid=pid + 1, wait_status=signal.SIGSEGV))
    supervisor.exits.watch(Rank(2, 1, 0, pid, 0))
    supervisor.exits.watch(Rank(3, 1, 1, pid + 1, 0))
    exits = [event.rank_exited.exit for event in node.link.emitted]
    assert [(ended.code, ended.signal) for ended in exits] == [(3, 0), (0, signal.SIGSEGV)]


async def test_report_of_an_earlier_generation_ends_no_rank_that_has_got_its_pid(folder: Path) -> None:
    node = make_node(folder)
    supervisor = node.supervisor()
    node.begin_generation(2, START)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        pid = process.pid
        supervisor.exits.watch(Rank(2, 2, 0, pid, processes.start_ticks(pid)))
        supervisor.exits.on_reaped(parent_pb.Exited(generation=1, rank=2, pid=pid, wait_status=3 << 8))
        try:
            assert node.ranks[2].is_alive
            assert node.link.emitted == []
            assert process.poll() is None
        finally:
            process.kill()


async def test_what_an_earlier_start_has_left_in_a_log_is_no_word_of_the_rank(
    folder: Path, rendezvous: StoreServer
) -> None:
    async with supervised(folder, rendezvous) as (supervisor, node):
        (folder / "train.py").write_text("import sys\nprint('new words', flush=True)\nsys.exit(3)\n")
        for rank in (2, 3):
            log = node.options.rank_log(1, rank)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("ValueError: old words\n")
        await supervisor.start(1, START)
        await until(lambda: node.stopped, "both ranks have ended")
        events = [event.rank_exited for event in node.link.emitted]
        assert [event.exit.last_words.strip() for event in events] == ["new words", "new words"]
        await leave(supervisor)


async def test_what_an_earlier_start_has_left_in_a_black_box_is_no_step_of_the_rank(
    folder: Path, rendezvous: StoreServer
) -> None:
    async with supervised(folder, rendezvous) as (supervisor, node):
        (folder / "train.py").write_text("import sys\nsys.exit(3)\n")  # it never attaches
        for rank in (2, 3):
            path = node.options.black_box(1, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            box = black_box.BlackBoxWriter(path, run="run", generation=1, rank=rank, world_size=4)
            box.moment(786, 3, 99)
        await supervisor.start(1, START)
        await until(lambda: node.stopped, "both ranks have ended")
        events = [event.rank_exited for event in node.link.emitted]
        assert [(event.exit.code, event.exit.step) for event in events] == [(3, -1), (3, -1)]
        await leave(supervisor)


async def test_ranks_start_with_torchelastics_environment_and_their_end_is_reported_with_their_black_box(
    folder: Path, rendezvous: StoreServer
) -> None:
    async with training(folder, rendezvous, "fails") as (_, node):
        assert list(node.ranks) == [2, 3]
        await until(lambda: node.stopped, "both ranks have ended")
        events = [event.rank_exited for event in node.link.emitted]
        assert sorted(event.rank for event in events) == [2, 3]
        assert [event.exit.order for event in events] == [1, 2]
        for event in events:
            assert (event.exit.code, event.exit.HasField("signal")) == (3, False)
            assert (event.exit.step, event.exit.phase) == (12, 3)
            assert event.exit.last_words == "ValueError: bad sample"
        environment = json.loads(node.options.rank_log(1, 3).read_text())
        assert (environment["RANK"], environment["MASTER_ADDR"]) == ("3", "10.0.0.7")
        context = RankContext.from_environment(environment)
        assert context is not None
        assert (context.run, context.generation, context.restore_slot) == ("run", 1, "")
        assert context.agent == f"unix:{node.options.session_socket}"
        assert node.changed.is_set()


async def test_stop_kills_every_rank_and_what_it_has_started(folder: Path, rendezvous: StoreServer) -> None:
    async with training(folder, rendezvous) as (supervisor, node):
        helpers = [helper_of(node, rank) for rank in (2, 3)]
        session = node.options.session_socket
        session.parent.mkdir(parents=True, exist_ok=True)
        worker_sockets = [worker_server_socket(session, rank.pid) for rank in node.ranks.values()]
        for path in worker_sockets:
            path.touch()
        assert not node.stopped
        await supervisor.stop()
        assert node.stopped
        exits = [rank.exit for rank in node.ranks.values()]
        assert [ended.signal for ended in exits if ended] == [signal.SIGKILL] * 2
        assert not any(path.exists() for path in worker_sockets)
        await gone(*helpers)


async def test_stop_kills_what_a_rank_that_is_dead_by_then_has_started(folder: Path, rendezvous: StoreServer) -> None:
    async with supervised(folder, rendezvous) as (supervisor, node):
        await supervisor.start(1, START)
        helpers = [helper_of(node, rank) for rank in (2, 3)]
        os.kill(node.ranks[2].pid, signal.SIGKILL)
        await until(lambda: not node.ranks[2].is_alive, "its end is known")
        await leave(supervisor)
        try:
            await gone(*helpers)
        finally:
            processes.kill_session(helpers[0], processes.start_ticks(helpers[0]))


async def test_a_start_ends_the_generation_before(folder: Path, rendezvous: StoreServer) -> None:
    async with training(folder, rendezvous) as (supervisor, node):
        before = [rank.pid for rank in node.ranks.values()]
        await supervisor.start(2, START)
        assert node.generation == 2
        assert {processes.process_state(pid) for pid in before} <= {"", "Z"}
        assert all(rank.is_alive and rank.generation == 2 for rank in node.ranks.values())


async def test_a_generation_that_cannot_start_is_reported_and_leaves_no_rank(
    folder: Path, store_server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_supervisor, "RENDEZVOUS_PATIENCE_S", 0.05)
    async with training(folder, store_server) as (supervisor, node):
        state = node.state(ready=True)
        assert (state.failed_generation, state.stopped) == (1, True)
        assert state.failure == "node node-a has not published the rendezvous of generation 1"
        memory = store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_MEMORY, step=9)
        await supervisor.start(2, memory)
        state = node.state(ready=True)
        assert (state.failed_generation, state.stopped) == (2, True)
        assert state.failure == "ranks [0, 1] have no snapshot of step 9 in memory"


def test_the_next_agent_adopts_the_ranks_and_learns_how_those_ended_that_it_missed(
    folder: Path, rendezvous: StoreServer
) -> None:
    async def first_agent() -> list[int]:
        async with supervised(folder, rendezvous) as (supervisor, node):
            await supervisor.start(1, START)
            for rank in (2, 3):
                helper_of(node, rank)
            supervisor.record.done("7-0")
            return [rank.pid for rank in node.ranks.values()]

    async def second_agent() -> None:
        async with supervised(folder, rendezvous) as (supervisor, node):
            assert supervisor.parent.starts_total == 0
            assert (supervisor.record.last_command, node.generation, list(node.ranks)) == ("7-0", 1, [2, 3])
            await until(lambda: not node.ranks[2].is_alive, "the exit that no agent saw is known")
            assert node.ranks[3].is_alive
            (event,) = node.link.emitted
            ended = event.rank_exited.exit
            assert (event.rank_exited.rank, ended.signal, ended.step) == (2, signal.SIGKILL, 12)
            processes.kill_session(node.ranks[3].pid, processes.start_ticks(node.ranks[3].pid))
            await until(lambda: node.stopped, "the exit of an adopted rank is seen")
            assert node.ranks[3].exit is not None
            assert node.ranks[3].exit.signal == signal.SIGKILL
            await leave(supervisor)

    pids = asyncio.run(first_agent())
    gc.collect()  # closes the first agent's end of the warm parent's socket, as its death would
    processes.kill_session(pids[0], processes.start_ticks(pids[0]))
    wait_until(lambda: processes.process_state(pids[0]) in ("", "Z"), "one rank is gone")
    asyncio.run(second_agent())


async def test_an_adopted_rank_that_has_left_training_is_known_to_have_left(
    folder: Path, rendezvous: StoreServer
) -> None:
    async with supervised(folder, rendezvous, "leaves") as (first, node):
        await first.start(1, START)
        for rank in (2, 3):
            helper_of(node, rank)
    async with supervised(folder, rendezvous) as (second, node):
        left = node.state(ready=True).ranks
        assert [rank.rank for rank in left] == [2, 3]
        assert {(rank.left_training, rank.progress.step, rank.progress.phase) for rank in left} == {(True, 12, 3)}
        await leave(second)


async def test_what_an_agent_has_requested_and_did_not_live_to_note_is_killed(
    folder: Path, rendezvous: StoreServer
) -> None:
    async with supervised(folder, rendezvous) as (first, node):
        await first.start(1, START)
        noted = [rank.pid for rank in node.ranks.values()]
        request = parent_pb.Fork(generation=2, rank=2, command=["sleep", "600"], log_path=str(folder / "log"))
        unknown = await first.parent.fork(request)
        ticks = processes.start_ticks(unknown)
    async with supervised(folder, rendezvous) as (second, _):
        assert second.parent.starts_total == 0
        await until(lambda: not processes.is_alive(unknown, ticks), "it is gone")
        assert all(processes.process_state(pid) not in ("", "Z") for pid in noted)
        await leave(second)


async def test_a_sweep_kills_the_ranks_of_an_earlier_instance(folder: Path, rendezvous: StoreServer) -> None:
    async with training(folder, rendezvous) as (_, node):
        saved = agent_record.load(node.options.record)
        assert saved is not None
        sweep(saved)
        await until(lambda: node.stopped, "the ranks are gone")


async def test_ranks_without_a_record_are_ended_and_those_of_other_nodes_and_runs_are_not(
    folder: Path, rendezvous: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    others = [store.RunSpec(instance="i"), store.RunSpec(instance="another")]
    marks = [mark_of(others[0], "node1"), mark_of(others[1], "node0")]
    with contextlib.ExitStack() as stack:
        sleepers = [stack.enter_context(bystander({parent_client.MARKER: mark})) for mark in marks]
        async with training(folder, rendezvous) as (supervisor, node):
            lost = [helper_of(node, rank) for rank in node.ranks] + [rank.pid for rank in node.ranks.values()]
            lost.append(supervisor.parent.pid)
            end_marked(node.spec, node.options.node)
            await gone(*lost)
        assert [sleeper.poll() for sleeper in sleepers] == [None, None]
    said = [line for line in caplog.messages if "no usable record" in line]
    assert said == [f"an earlier agent of this node has left no usable record: its {len(lost)} processes were ended"]


@contextlib.contextmanager
def bystander(marks: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of another program, which may have the pid of a rank that is gone."""
    environment = {**os.environ, **(marks or {})}
    with subprocess.Popen(["sleep", "600"], start_new_session=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_process_that_has_got_the_pid_of_an_earlier_rendezvous_or_rank_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_watch, "REAP_PATIENCE_S", 0.0)
    with bystander() as process:
        ticks = processes.start_ticks(process.pid) - 1
        ranks = [RankRecord(rank=0, pid=process.pid, start_ticks=ticks)]
        spec = store.RunSpec(run="run", command=["true"])
        for earlier in (ticks, 0):
            node = make_node(folder)
            saved = AgentRecord(
                generation=1, ranks=ranks, spec=spec, start=START, rendezvous_pid=process.pid,
                rendezvous_start_ticks=earlier,
            )  # fmt: skip
            supervisor = node.supervisor()
            sweep(saved)
            supervisor.adopt(saved)
            await supervisor.stop()
            await until(lambda it=node: it.stopped, "the rank is known to be gone")  # type: ignore[misc]
        assert process.poll() is None


async def test_record_keeps_the_start_time_of_the_rendezvous_and_of_the_warm_parent(
    folder: Path, store_server: StoreServer
) -> None:
    async with supervised(folder, store_server) as (supervisor, node):
        start = store.StartGeneration()
        start.CopyFrom(START)
        start.rendezvous_node = node.options.node
        supervisor.parent.host_store = hosted  # type: ignore[method-assign]
        await supervisor._rendezvous(1, start)
        supervisor.record.save()
        saved = agent_record.load(node.options.record)
        assert saved is not None
        assert saved.rendezvous_start_ticks == 0  # this process is no child of the warm parent: never to be killed
        assert saved.warm_parent_start_ticks == processes.start_ticks(supervisor.parent.pid) > 0
        assert node.errors.refused["warm_parent"] == 1
        await leave(supervisor)


async def hosted(generation: int, address: str) -> parent_pb.StoreReady:
    return parent_pb.StoreReady(generation=generation, port=1, pid=os.getpid())


async def test_children_that_a_warm_parent_claims_and_does_not_have_are_left_alone(
    folder: Path, store_server: StoreServer
) -> None:
    with bystander() as process:
        async with supervised(folder, store_server) as (supervisor, node):
            children = [parent_pb.Forked(generation=1, rank=0, pid=pid) for pid in (process.pid, 1, 0)]
            supervisor._end_unknown(parent_pb.Ready(children=children))
            await until(lambda: not supervisor._jobs.running, "they have been looked at")
            assert node.errors.refused["warm_parent"] >= 1
            await leave(supervisor)
        assert process.poll() is None


async def test_rank_is_watched_without_a_descriptor(
    folder: Path, rendezvous: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_is_left(pid: int, flags: int = 0) -> int:
        raise OSError(24, "Too many open files")

    async with supervised(folder, rendezvous) as (supervisor, node):
        with monkeypatch.context() as without:
            without.setattr(os, "pidfd_open", none_is_left)
            await supervisor.start(1, START)
        assert all(rank.is_alive for rank in node.ranks.values())
        os.kill(node.ranks[2].pid, signal.SIGKILL)
        await until(lambda: not node.ranks[2].is_alive, "its end is seen")
        assert node.ranks[3].is_alive
        await leave(supervisor)


async def test_black_box_that_makes_no_sense_does_not_hide_an_exit(
    folder: Path, rendezvous: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with training(folder, rendezvous) as (_, node):
        for rank in (2, 3):
            helper_of(node, rank)
        box = node.options.black_box(1, 2)
        with box.open("r+b") as file:  # as a rank that dies of stray writes may leave it
            file.write(file.read(8) + b"\xff" * (black_box.SIZE - 8))
        processes.kill_session(node.ranks[2].pid, node.ranks[2].start_ticks)
        await until(lambda: not node.ranks[2].is_alive, "its end is known")
        ended = node.ranks[2].exit
        assert ended is not None
        assert (ended.signal, ended.step, ended.phase) == (signal.SIGKILL, -1, 1)
        assert node.errors.refused["files"] == 1
