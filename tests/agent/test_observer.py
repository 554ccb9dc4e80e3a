"""The agent of a run that another launcher has started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from holdfast_agent.observer import Observer
from holdfast_agent.processes import agent_record
from holdfast_agent.rank_supervisor import sweep
from holdfast_proto.black_box import BlackBoxWriter
from holdfast_proto.rank_context import pid_namespace
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import until
from tests.support.nodes import RUN, RecordedNode, make_node


class Processes:
    """Stand-ins for ranks, children of this process: until it reaps them they stay zombies."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, stderr: IO[bytes] | None = None) -> int:
        """Start a process that sleeps; return its pid."""
        self.all.append(subprocess.Popen(["sleep", "600"], stderr=stderr))
        return self.all[-1].pid

    def end(self, pid: int, number: int = signal.SIGKILL) -> None:
        """End a process without reaping it."""
        os.kill(pid, number)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def reap(self, pid: int) -> None:
        """End a process and reap it."""
        (process,) = (process for process in self.all if process.pid == pid)
        process.kill()
        process.wait()


@pytest.fixture
def children() -> Iterator[Processes]:
    started = Processes()
    yield started
    for process in started.all:
        process.kill()
        process.wait()


class World:
    """A node that observes."""

    def __init__(self, folder: Path, children: Processes) -> None:
        self.node: RecordedNode = make_node(folder, command=())
        self.supervisor = self.node.supervisor()
        self.observer = Observer(self.node, self.supervisor)
        self.children = children

    def join(self, rank: int, **others: Any) -> int:
        """Start a process that sends a rank's Hello, and is accepted; return its pid."""
        pid = self.children.start()
        assert self.hello(rank, pid, **others)
        return pid

    def hello(self, rank: int, pid: int, *, generation: int = 1, world_size: int = 2, **others: Any) -> bool:
        """Send a rank's Hello; return whether the agent accepts it."""
        fields = {"run": RUN, "generation": generation, "world_size": world_size, **others}
        hello = session.Hello(rank=rank, local_rank=rank, pid=pid, **fields)
        return self.observer.admit(hello) is not None

    async def exit_of(self, rank: int) -> store.RankExit:
        """Return how a rank ended, once it has."""
        known = self.node.ranks[rank]
        await until(lambda: known.exit, "its end is seen")
        assert known.exit is not None
        return known.exit


@pytest.fixture
def world(folder: Path, children: Processes) -> World:
    return World(folder, children)


async def test_the_first_hello_begins_a_world_and_the_others_join_it(world: World) -> None:
    assert world.node.state(ready=False).generation == 0
    pids = [world.join(rank) for rank in range(2)]
    state = world.node.state(ready=False)
    assert (state.generation, state.world_size, state.stopped) == (1, 2, False)
    assert [(rank.rank, rank.pid) for rank in state.ranks] == list(enumerate(pids))
    assert {rank.life for rank in state.ranks} == {store.LIFE_RUNNING}


async def test_a_rank_with_process_numbers_of_another_container_is_refused_and_never_counts_as_dead(
    world: World,
) -> None:
    assert not world.hello(0, 1_000_000, pid_namespace=pid_namespace() + 1)
    state = world.node.state(ready=False)
    assert (state.generation, list(state.ranks)) == (0, [])
    assert "run `holdfast observe` in the container" in state.refused_ranks
    world.join(1, pid_namespace=pid_namespace())
    assert list(world.node.ranks) == [1]


async def test_the_same_process_may_send_hello_again_and_another_that_calls_itself_the_same_rank_is_refused(
    world: World,
) -> None:
    first = world.join(0)
    known = world.node.ranks[0]
    assert world.hello(0, first)
    assert world.node.ranks == {0: known}
    assert not world.hello(0, world.children.start())
    assert not world.hello(1, world.children.start(), run="another")
    assert [rank.pid for rank in world.node.ranks.values()] == [first]


async def test_what_cpp_wrote_about_an_abort_is_read_if_stderr_is_a_file(world: World, folder: Path) -> None:
    log = folder / "job.log"
    with log.open("wb") as stderr:
        pid = world.children.start(stderr=stderr)
    world.hello(0, pid)
    await until(lambda: world.node.ranks[0].output, "the agent knows the file")
    words = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  64 vs 4"
    log.write_text(f"step 20\n{words}\nRuntimeError: Connection closed by peer\n")
    world.children.end(pid, signal.SIGABRT)
    ended = await world.exit_of(0)
    assert (ended.signal, ended.last_words) == (signal.SIGABRT, words)


async def test_a_signal_that_ends_a_rank_is_known_until_its_launcher_has_reaped_it(world: World) -> None:
    pid = world.join(0)
    world.children.end(pid)
    ended = await world.exit_of(0)
    assert (ended.signal, ended.HasField("code"), ended.finished) == (signal.SIGKILL, False, False)
    assert world.node.link.kinds() == ["rank_exited"]


async def test_a_rank_that_was_reaped_first_has_ended_without_a_status(world: World) -> None:
    pid = world.join(0)
    world.join(1)
    world.children.reap(pid)
    ended = await world.exit_of(0)
    assert not (ended.HasField("code") or ended.HasField("signal") or ended.finished)
    assert world.node.ranks[1].is_alive


async def test_a_rank_that_has_said_that_it_is_finished_has_left_with_code_0(world: World) -> None:
    pid = world.join(0)
    await world.node.messages.receive(world.node.ranks[0], session.RankMessage(report=session.Report(finished=True)))
    world.node.pass_time(600.0)
    assert world.node.ranks[0].stalled_s == 0.0  # it may take its time to leave
    world.children.reap(pid)
    ended = await world.exit_of(0)
    assert (ended.HasField("code"), ended.code, ended.finished) == (True, 0, True)


CLOSES_AND_ENDS = """
import sys
from pathlib import Path
from holdfast_proto.black_box import BlackBoxWriter
box = BlackBoxWriter(Path(sys.argv[1]), run="run", generation=1, rank=0, world_size=1)
box.moment(7, 3, 1)
print(flush=True)
sys.stdin.readline()
if sys.argv[2] == "finishes":
    box.finish()
else:
    box.last_words("ValueError: bad sample")
"""


@pytest.mark.parametrize(("what", "has_left"), [("finishes", True), ("fails", False)])
async def test_the_black_box_shows_how_a_rank_meant_to_end_whose_last_report_was_lost(
    world: World, what: str, has_left: bool
) -> None:
    path = world.node.options.black_box(1, 0)
    path.parent.mkdir(parents=True)
    arguments = [sys.executable, "-c", CLOSES_AND_ENDS, str(path), what]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        world.hello(0, process.pid, world_size=1)
        process.communicate(b"\n")
    ended = await world.exit_of(0)
    assert (ended.HasField("code"), ended.finished, ended.step) == (has_left, has_left, 7)
    assert ended.last_words == ("" if has_left else "ValueError: bad sample")


async def test_the_black_box_of_another_process_shows_nothing_of_a_rank(world: World) -> None:
    pid = world.join(0)
    path = world.node.options.black_box(1, 0)
    path.parent.mkdir(parents=True)
    BlackBoxWriter(path, run=RUN, generation=1, rank=0, world_size=2).finish()  # of this process
    world.children.reap(pid)
    assert not (await world.exit_of(0)).finished


async def test_a_newer_generation_takes_the_place_of_the_world_before(world: World) -> None:
    world.join(0)
    world.join(1)
    newer = world.join(1, generation=2)
    assert world.node.generation == 2
    assert {number: rank.pid for number, rank in world.node.ranks.items()} == {1: newer}
    assert not world.hello(0, world.children.start(), generation=1)


async def test_a_rank_whose_process_was_replaced_begins_the_same_generation_anew(world: World) -> None:
    for rank in range(2):
        world.children.end(world.join(rank))
    new = [world.join(rank) for rank in range(2)]
    state = world.node.state(ready=False)
    assert [(rank.pid, rank.HasField("exit")) for rank in state.ranks] == [(new[0], False), (new[1], False)]
    assert state.generation == 1


async def test_a_launcher_that_counts_anew_after_all_ranks_have_gone_is_followed(world: World) -> None:
    world.children.end(world.join(0, generation=3))
    world.join(2, generation=1, world_size=4)
    assert (world.node.generation, world.node.state(ready=False).world_size) == (1, 4)
    assert list(world.node.ranks) == [2]


async def test_nothing_that_touches_the_ranks_is_obeyed(world: World) -> None:
    world.join(0)
    commands = world.node.commands(world.supervisor)
    start = store.StartGeneration()
    await commands.handle(store.NodeCommand(id="1", instance="i", generation=2, start=start), 1, "1-0")
    await commands.handle(store.NodeCommand(id="2", instance="i", generation=1, stop=store.StopGeneration()), 2, "2-0")
    await commands.handle(store.NodeCommand(id="3", instance="i", generation=1, leave=store.LeaveAt(step=9)), 3, "3-0")
    assert world.node.link.kinds() == ["command_refused"] * 3
    await world.supervisor.stop()
    sweep(agent_record.load(world.node.options.record) or pytest.fail("no record"))
    assert world.node.ranks[0].is_alive
    assert world.children.all[0].poll() is None
    finish = store.FinishRun(succeeded=True)
    await commands.handle(store.NodeCommand(id="4", instance="i", generation=1, finish=finish), 4, "4-0")
    assert commands.finished.result() == finish


async def test_the_next_agent_knows_the_ranks_of_the_one_before(world: World, folder: Path) -> None:
    pids = [world.join(rank, generation=2) for rank in range(2)]
    next_world = World(folder, world.children)
    world.children.end(pids[1])
    next_world.supervisor.adopt(agent_record.load(world.node.options.record) or pytest.fail("no record"))
    assert (await next_world.exit_of(1)).signal == signal.SIGKILL
    known = next_world.node.ranks[0]
    assert next_world.hello(0, pids[0], generation=2)
    assert next_world.node.ranks[0] is known
    assert next_world.node.state(ready=False).world_size == 2
