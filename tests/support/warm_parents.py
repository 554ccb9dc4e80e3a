"""A real warm parent, and the agent's end of its socket with blocking calls."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast_agent.processes.warm_parent import MESSAGE_BYTES
from holdfast_proto.v1 import warm_parent_pb2 as pb
from tests.support.coroutines import PATIENCE_S, wait_until

RUN = "warm"
COMMAND = ("python", "train.py")


class Agent:
    """One connection to a warm parent."""

    def __init__(self, path: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(PATIENCE_S)
        self._connection.connect(str(path))
        self._own: set[int] = set()
        """Pids of the ranks that it has forked."""
        self.ready = self.receive().ready

    def close(self) -> None:
        """Close the connection. The warm parent then takes the agent for dead."""
        self._connection.close()

    def receive(self) -> pb.ParentReply:
        """Return the next message. Raises EOFError if the warm parent has closed the connection."""
        data = self._connection.recv(MESSAGE_BYTES)
        if not data:
            raise EOFError
        return pb.ParentReply.FromString(data)

    def ask(self, request: pb.ParentRequest) -> None:
        """Send a request."""
        self._connection.send(request.SerializeToString())

    def fork(self, command: list[str], log: Path, *, rank: int = 0, **environment: str) -> int:
        """Return the pid of a new rank."""
        request = pb.Fork(generation=1, rank=rank, command=command, environment=environment, log_path=str(log))
        self.ask(pb.ParentRequest(fork=request))
        forked = self.answer().forked
        assert (forked.generation, forked.rank) == (1, rank)
        self._own.add(forked.pid)
        return forked.pid

    def answer(self) -> pb.ParentReply:
        """Return the answer to a request. Before it may come the exits of ranks that earlier agents have forked."""
        while (reply := self.receive()).HasField("exited"):
            assert reply.exited.pid not in self._own
        return reply

    def end_of(self, pid: int, *, rank: int = 0) -> int:
        """Return the wait status of a rank. Of those that this agent has forked, it must be the next one that ends."""
        while (exited := self.receive().exited).pid != pid:
            assert exited.pid
            assert exited.pid not in self._own
        assert (exited.generation, exited.rank) == (1, rank)
        return exited.wait_status

    def code_of(self, command: list[str], log: Path, **environment: str) -> int:
        """Run a rank to its end; return its exit code, or the negative signal that ended it."""
        return os.waitstatus_to_exitcode(self.end_of(self.fork(command, log, rank=0, **environment)))


class WarmParent:
    """The process of a warm parent, in a folder of its own."""

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        self.folder = folder
        self.process = process
        self.socket = folder / "parent.sock"
        self.log = folder / "parent.log"

    @contextlib.contextmanager
    def agent(self) -> Iterator[Agent]:
        """Connect an agent."""
        agent = wait_until(self._connected, "the warm parent answers")
        try:
            yield agent
        finally:
            agent.close()

    def _connected(self) -> Agent | None:
        # Between bind and listen, and between the removal of an old socket and bind.
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            return Agent(self.socket)
        return None


@contextlib.contextmanager
def warm_parent(folder: Path, *modules: str) -> Iterator[WarmParent]:
    """Start a warm parent that imports ``modules``. Its working directory is ``folder``."""
    program = [sys.executable, "-m", "holdfast_agent.processes.warm_parent"]
    command = [*program, str(folder / "parent.sock"), RUN, *modules, "--", *COMMAND]
    with (folder / "parent.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        yield WarmParent(folder, process)
    finally:
        process.kill()
        process.wait()


def writers_in(folder: str) -> list[int]:
    """Return the pids of processes whose output goes to a file in ``folder``, whatever program they run by now."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str((entry / "fd" / "1").readlink()).startswith(f"{folder}/"):
                found.append(int(entry.name))
    return found
