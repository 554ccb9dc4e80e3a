import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast_agent.processes import parent_client
from holdfast_agent.processes.parent_client import WarmParentClient
from holdfast_base import processes
from holdfast_base.processes import AgentError
from holdfast_proto.v1 import warm_parent_pb2 as pb
from tests.support.coroutines import end, until
from tests.support.warm_parents import RUN, writers_in

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm parents that import next to nothing."""
    monkeypatch.setattr(parent_client, "modules_to_preload", lambda command: ["string"])


class Client(WarmParentClient):
    """A client that keeps the reported exits, and the children that its warm parent had before."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "parent.sock", folder / "parent.log", self._heard, self._found, run_name=RUN)
        self.folder = folder
        self.exits: list[pb.Exited] = []
        self.found: list[int] = []

    def _heard(self, exited: pb.Exited) -> None:
        self.exits.append(exited)

    def _found(self, ready: pb.Ready) -> None:
        self.found = [child.pid for child in ready.children]

    async def run_rank(self, *command: str, rank: int = 0) -> int:
        """Return the pid of a new rank."""
        log = str(self.folder / "rank.log")
        return await self.fork(pb.Fork(generation=1, rank=rank, command=command, log_path=log))


@contextlib.asynccontextmanager
async def running(client: Client) -> AsyncIterator[None]:
    """Run a client with its warm parent. At the end it stops without a farewell."""
    task = asyncio.create_task(client.run(["python", "train.py"]))
    try:
        await until(lambda: client.is_ready or task.done(), "a warm parent is ready")
        yield
    finally:
        await end(task)


async def killed(client: Client, is_far_enough: Callable[[], object], what: str) -> None:
    """Run a client until it has got that far, and then stop it."""
    task = asyncio.create_task(client.run(["python", "train.py"]))
    await until(is_far_enough, what)
    await end(task)


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Client]:
    """Run a client with its warm parent, which leaves in the end."""
    client = Client(folder)
    async with running(client):
        yield client
        await client.leave()
        await gone(client.pid)


async def gone(pid: int) -> None:
    await until(lambda: processes.process_state(pid) in ("", "Z"), f"process {pid} is gone")


async def test_it_starts_a_warm_parent_and_forks_ranks(folder: Path) -> None:
    async with served(folder) as client:
        assert client.starts_total == 1
        pid = await client.run_rank("sh", "-c", "exit 4", rank=2)
        await until(lambda: client.exits, "the exit is reported")
        (exited,) = client.exits
        assert (exited.generation, exited.rank, exited.pid) == (1, 2, pid)
        assert os.waitstatus_to_exitcode(exited.wait_status) == 4


async def test_a_killed_warm_parent_is_replaced_and_its_ranks_continue(folder: Path) -> None:
    async with served(folder) as client:
        first = client.pid
        rank = await client.run_rank("sleep", "600")
        os.kill(first, signal.SIGKILL)
        await until(lambda: client.pid not in (0, first), "another warm parent is ready")
        assert client.starts_total == 2
        assert processes.process_state(rank) in ("S", "R")
        processes.kill_session(rank, processes.start_ticks(rank))
        await client.run_rank("true", rank=1)
        await until(lambda: [exited.rank for exited in client.exits] == [1], "the new one reports")


async def test_a_fork_that_is_waited_for_fails_when_the_warm_parent_dies(folder: Path) -> None:
    async with served(folder) as client:
        pid = client.pid
        os.kill(pid, signal.SIGSTOP)
        waiting = [asyncio.create_task(client.run_rank("true", rank=rank)) for rank in range(2)]
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, AgentError)
            assert "the warm parent was lost" in str(answer)
        await until(lambda: client.is_ready, "another is ready")


async def test_a_fork_waits_for_the_warm_parent_that_is_being_replaced(folder: Path) -> None:
    async with served(folder) as client:
        first = client.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: client.pid == 0, "the warm parent is missed")
        rank = await client.run_rank("sleep", "600")
        assert client.pid not in (0, first)
        processes.kill_session(rank, processes.start_ticks(rank))


async def test_a_fork_is_given_up_when_no_warm_parent_comes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_client, "REPLY_TIMEOUT_S", 0.01)
    with pytest.raises(AgentError, match="the warm parent was lost"):
        await Client(folder).run_rank("true")


async def test_a_fork_that_is_given_up_ends_as_cancelled(folder: Path) -> None:
    async with served(folder) as client:
        os.kill(client.pid, signal.SIGSTOP)
        fork = asyncio.create_task(client.run_rank("true"))
        await asyncio.sleep(0)
        fork.cancel()
        await asyncio.gather(fork, return_exceptions=True)
        os.kill(client.pid, signal.SIGCONT)
    assert fork.cancelled()


async def test_the_next_agent_finds_the_warm_parent_that_the_last_one_left(folder: Path) -> None:
    first, second = Client(folder), Client(folder)
    async with running(first):
        stays = await first.run_rank("sleep", "600")
    async with running(second):
        assert second.starts_total == 0
        assert second.pid == first.pid
        assert (first.found, second.found) == ([], [stays])
        os.kill(stays, signal.SIGKILL)
        await until(lambda: [exited.pid for exited in second.exits] == [stays], "the exit is reported to the second")
        assert first.exits == []
        await second.leave()
        await gone(second.pid)


async def test_a_warm_parent_that_one_agent_after_the_other_has_waited_for_in_vain_serves_the_next(
    folder: Path,
) -> None:
    first = Client(folder)
    async with running(first):
        os.kill(first.pid, signal.SIGSTOP)  # as if it still imported
    for _ in range(4):
        waiting = Client(folder)
        await killed(waiting, lambda client=waiting: client.pid, "it is connected")  # type: ignore[misc]
        assert (waiting.pid, waiting.starts_total) == (first.pid, 0)
    os.kill(first.pid, signal.SIGCONT)
    last = Client(folder)
    async with running(last):
        assert (last.pid, last.starts_total) == (first.pid, 0)
        pid = await last.run_rank("sleep", "600")
        processes.kill_session(pid, processes.start_ticks(pid))
        await last.leave()
        await gone(last.pid)


LATE = """
import os, sys, time
while "holdfast_agent.processes.warm_parent" in sys.orig_argv and not os.path.exists(os.environ["GATE"]):
    time.sleep(0.01)
"""


async def test_if_an_agent_dies_while_it_starts_a_warm_parent_and_the_next_starts_another_one_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sitecustomize.py").write_text(LATE)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("GATE", str(folder / "gate"))
    first, second = Client(folder), Client(folder)
    await killed(first, lambda: first.starts_total, "a warm parent is started, and does not listen yet")
    task = asyncio.create_task(second.run(["python", "train.py"]))
    await until(lambda: second.starts_total, "so is another")
    (folder / "gate").touch()
    await until(lambda: second.is_ready, "one of them is ready")
    await until(lambda: len(writers_in(str(folder))) == 1, "the other has ended")
    assert second.starts_total == 1
    pid = await second.run_rank("sleep", "600")
    processes.kill_session(pid, processes.start_ticks(pid))
    await second.leave()
    await gone(second.pid)
    await end(task)


async def test_leave_ends_the_warm_parent_and_starts_no_other(folder: Path) -> None:
    client = Client(folder)
    task = asyncio.create_task(client.run(["python", "train.py"]))
    await until(lambda: client.is_ready, "a warm parent is ready")
    pid = client.pid
    await client.leave()
    await asyncio.wait_for(task, 30)
    await gone(pid)
    assert client.starts_total == 1
    assert not client.is_ready


async def test_a_warm_parent_that_still_imports_leaves_as_well(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, note = folder / "gate", folder / "pid"
    os.mkfifo(gate)
    module = f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\nopen({str(gate)!r}).read()\n"
    (folder / "slow_module.py").write_text(module)
    monkeypatch.setattr(parent_client, "modules_to_preload", lambda command: ["slow_module"])
    monkeypatch.chdir(folder)
    client = Client(folder)
    task = asyncio.create_task(client.run(["python", "train.py"]))
    # This returns once the warm parent handles the request.
    writer = await asyncio.to_thread(os.open, gate, os.O_WRONLY)
    pid = int(note.read_text())
    await client.leave()
    os.close(writer)
    try:
        await asyncio.wait_for(gone(pid), 5)
    finally:
        processes.kill_session(pid, processes.start_ticks(pid))
        await end(task)


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[socket.socket]:
    """A socket in the place of a warm parent's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "parent.sock"))
        listener.listen()
        yield listener


async def test_a_socket_that_another_user_serves_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(folder)
    with listening(folder):
        with monkeypatch.context() as squatted:
            squatted.setattr(os, "geteuid", lambda: os.getuid() + 1)
            assert not await client._connect()
        assert (client.pid, client._errors.refused["warm_parent"]) == (0, 1)
        assert await client._connect()
        assert client.pid == os.getpid()


async def test_messages_that_make_no_sense_do_not_end_the_connection(folder: Path) -> None:
    client = Client(folder)
    with listening(folder) as listener:
        task = asyncio.create_task(client.run(["true"]))
        connection, _ = await asyncio.to_thread(listener.accept)
        with connection:
            for reply in (pb.ParentReply(), pb.ParentReply(ready=pb.Ready(pid=1))):
                connection.send(b"\xff\xff\xff")
                connection.send(reply.SerializeToString() or b"\xff")
            await until(lambda: client.is_ready, "what makes sense is heard")
            assert client._errors.refused["warm_parent"] == 3
            await end(task)


async def test_a_fork_that_is_impossible_fails_immediately(folder: Path) -> None:
    client = Client(folder)
    with listening(folder) as listener:
        task = asyncio.create_task(client.run(["true"]))
        connection, _ = await asyncio.to_thread(listener.accept)
        with connection:
            connection.send(pb.ParentReply(ready=pb.Ready(pid=1)).SerializeToString())
            await until(lambda: client.is_ready, "it is ready")
            asked = asyncio.create_task(client.run_rank("true"))
            await asyncio.to_thread(connection.recv, 4096)
            connection.send(pb.ParentReply(forked=pb.Forked(generation=1, rank=0)).SerializeToString())
            with pytest.raises(AgentError, match="could not start rank 0"):
                await asked
            await end(task)
