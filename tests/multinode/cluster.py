"""A run on several nodes with real processes: Redis and the daemon on node 0, an agent on each other node."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_cli.control import ControlClient, ControlError
from holdfast_cli.local_run.redis_server import answers, find_server
from holdfast_proto.run_files import run_key
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_OPEN, INCIDENT_STATE_STANDSTILL, Incident
from tests.multinode.network import Link, Network, network
from tests.support.local_runs import FOUND_PATIENCE_S, wait_for

RUN = "several"
RANKS_PER_NODE = 2
CHECKPOINT_EVERY = 5
PATIENCE_S = 240.0
TRAINER = Path(__file__).with_name("trainer.py")
OBJECT_STORE = Path(__file__).with_name("object_store.py")
OBJECT_STORE_PORT = 9000
BUCKET = "checkpoints"
HOLDFAST = (sys.executable, "-m", "holdfast_cli")


@dataclass(frozen=True)
class FinishedStep:
    """A line of a rank's journal."""

    rank: int
    generation: int
    step: int
    ended_unix_s: float


@dataclass
class Cluster:
    """See :func:`cluster`."""

    net: Network
    folder: Path
    """Folder that all nodes share, as they would share a network file system."""
    memory: Path
    """Folder in memory with a short path, for sockets and snapshots."""
    uses_object_store: bool = False
    """Whether checkpoints are in an object store at node 0, all that nodes share. Otherwise they share a folder."""
    replicate_every_s: float = 0.0
    checkpoint_every: int = CHECKPOINT_EVERY
    script: Path = TRAINER
    flags: Sequence[str] = ()
    """Further flags of `holdfast publish`."""
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Value in the environment of every process of this cluster."""

    def start(self, *, steps: int) -> None:
        """Start a run on nodes 1 and 2."""
        self.start_redis()
        self.start_daemon()
        if self.uses_object_store:
            self._start_object_store()
        for node in (1, 2):
            self.start_agent(node)
        wait_for(lambda: answers(f"unix://{self.memory}/redis.sock"), "Redis")
        self._publish(steps)

    def start_redis(self) -> None:
        """Start a server without data."""
        data = self.folder / "redis"
        data.mkdir(exist_ok=True)
        settings = {"bind": self.net.address(0, Link.CONTROL), "protected-mode": "no", "dir": str(data), "save": ""}
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._spawn("redis", 0, [str(find_server()), *words, "--unixsocket", str(self.memory / "redis.sock")])

    def start_daemon(self) -> None:
        """Start the daemon."""
        where = ["--directory", str(self.folder), "--control", str(self.memory / "daemon.sock")]
        self._spawn("daemon", 0, [*HOLDFAST, "daemon", *self._store, *where])

    def start_agent(self, node: int) -> None:
        """Start the agent of a node. If two nodes train already, it is a spare."""
        where = ["--directory", str(self.disk(node)), "--shm-directory", str(self.memory)]
        where += ["--runtime-directory", str(self.memory / str(node))]
        if self.uses_object_store:  # a node with a disk of its own gets a copy of the key
            where += ["--run-key-file", str(run_key(self.folder, RUN))]
        who = ["--run", RUN, "--node", f"node-{node}", "--address", self.net.address(node, Link.DATA)]
        self._spawn(f"agent-{node}", node, [*HOLDFAST, "agent", *self._store, *who, *where])

    def disk(self, node: int) -> Path:
        """Return the folder that the agent of a node keeps its files in."""
        return self.folder / f"disk-{node}" if self.uses_object_store else self.folder

    @property
    def second_place(self) -> Path:
        """Folder that gets copies of the checkpoints in the object store."""
        return self.folder / "second"

    def _start_object_store(self) -> None:
        arguments = [self.net.address(0, Link.CONTROL), str(OBJECT_STORE_PORT), BUCKET]
        self._spawn("object-store", 0, [sys.executable, str(OBJECT_STORE), *arguments])
        log = self.folder / "object-store.log"
        wait_for(lambda: "ready" in log.read_text(), "the object store")

    def _publish(self, steps: int) -> None:
        how = ["--run", RUN, "--nodes", "2", "--ranks-per-node", str(RANKS_PER_NODE), "--preset", "fast"]
        how += ["--directory", str(self.folder)]
        states = ["--snapshot-every", "1", "--replicate-every", str(self.replicate_every_s)]
        states += ["--checkpoint-every", str(self.checkpoint_every)]
        where = ["--checkpoints", str(self.folder / "checkpoints")]
        if self.uses_object_store:
            where = ["--checkpoints", f"s3://{BUCKET}/{RUN}", "--checkpoints-secondary", str(self.second_place)]
            where += ["--checkpoints-secondary-keep", "1", "--checkpoint-upload-mb-per-s", "50"]
        trainer = ["python", str(self.script), str(self.folder), str(steps)]
        command = [*HOLDFAST, "publish", *self._store, *how, *states, *where, *self.flags, "--", *trainer]
        subprocess.run(self.net.inside(0, command), check=True, capture_output=True, timeout=PATIENCE_S)

    @property
    def _store(self) -> list[str]:
        return ["--redis", f"redis://{self.net.address(0, Link.CONTROL)}:6379"]

    def _spawn(self, name: str, node: int, command: list[str]) -> None:
        environment = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": Link.DATA.value,
            "OMP_NUM_THREADS": "1",
            "HOLDFAST_TEST_MARK": self._mark,
            "AWS_ENDPOINT_URL": f"http://{self.net.address(0, Link.CONTROL)}:{OBJECT_STORE_PORT}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.net.inside(node, command), env=environment, stdout=log, stderr=log
            )

    @property
    def control(self) -> ControlClient:
        return ControlClient(self.memory / "daemon.sock", RUN)

    def until(
        self, condition: Callable[[RunStatus], object], what: str, patience_s: float = FOUND_PATIENCE_S
    ) -> RunStatus:
        """Wait until the run's status meets a condition."""

        def look() -> RunStatus | None:
            status = self.control.status()
            return status if condition(status) else None

        return wait_for(look, what, patience_s)

    def until_step(self, step: int) -> RunStatus:
        return self.until(lambda status: status.newest_step >= step, f"step {step}")

    def until_recovered(self) -> Incident:
        """Wait until all incidents are over and the last one has recovered; return that one.

        A standstill that is reported first ends as noted, once a verdict explains it.
        """

        def look() -> Incident | None:
            incidents = self.control.incidents()
            is_over = all(one.state not in (INCIDENT_STATE_OPEN, INCIDENT_STATE_STANDSTILL) for one in incidents)
            return incidents[-1] if incidents and is_over and incidents[-1].recovered_unix_s else None

        return wait_for(look, "a recovery")

    def incident(self) -> Incident:
        """Return the first incident, as soon as there is one."""
        return wait_for(lambda: next(iter(self.control.incidents()), None), "an incident")

    def hurry(self) -> None:
        """Let the run train at full speed, because nothing more will be done to it."""
        (self.folder / "hurry").touch()

    def journal(self) -> list[FinishedStep]:
        """Return all steps that any rank has finished, in the order of their ends."""
        found = []
        for path in self.folder.glob("rank-*.journal"):
            rank = int(path.stem.removeprefix("rank-"))
            for line in path.read_text().splitlines():
                generation, step, ended_unix_s = line.split()
                found.append(FinishedStep(rank, int(generation), int(step), float(ended_unix_s)))
        return sorted(found, key=lambda finished: finished.ended_unix_s)

    def close(self) -> None:
        """Stop the run as an operator would, and then end everything that is left of it."""
        for node in range(1, self.net.size):
            self.net.repair(node, *Link)
        with contextlib.suppress(ControlError, subprocess.TimeoutExpired):
            self.control.stop_run()
            for name, process in self.processes.items():
                if name.startswith("agent"):
                    process.wait(PATIENCE_S)
        for process in self.processes.values():
            process.kill()
            process.wait()
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _alive(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._mark.encode() in (entry / "environ").read_bytes():
                        yield int(entry.name)


@contextlib.contextmanager
def cluster(folder: Path, *, nodes: int, steps: int, **settings: Any) -> Iterator[Cluster]:
    """Yield a run of four ranks on nodes 1 and 2, in a network of nodes 0 to ``nodes - 1``. End it afterwards.

    ``settings``: fields of Cluster.
    """
    with network(nodes) as net, tempfile.TemporaryDirectory(prefix="hf-", dir="/dev/shm") as memory:
        made = Cluster(net, folder, Path(memory), **settings)
        try:
            made.start(steps=steps)
            yield made
        finally:
            made.close()


def train_undisturbed(folder: Path, steps: int, *, script: Path = TRAINER, patience_s: float = PATIENCE_S) -> None:
    """Let all ranks train for ``steps`` steps under plain torchrun, at full speed. The script writes to ``folder``."""
    folder.mkdir()
    (folder / "hurry").touch()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(2 * RANKS_PER_NODE)]
    command = [*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(steps)], env=environment, check=True, capture_output=True, timeout=patience_s)


def undisturbed_weights(folder: Path, steps: int, *, patience_s: float = PATIENCE_S) -> bytes:
    """Return the weights at the end of such a training."""
    train_undisturbed(folder, steps, patience_s=patience_s)
    return (folder / "weights-0").read_bytes()


def flip_bit(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def is_alive(pid: int) -> bool:
    """Return whether a process runs: it is neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
