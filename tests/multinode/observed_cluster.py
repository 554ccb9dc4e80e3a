"""A run that other launchers start on several nodes, with ``holdfast observe`` on each: Redis is on node 0."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redis

from holdfast_cli.local_run.redis_server import answers, find_server
from holdfast_cli.local_run.store import connect
from holdfast_cli.observed_nodes.store_view import StoreView
from holdfast_proto import keys
from holdfast_proto.run_files import run_key
from holdfast_proto.run_key import RunKeyFile, Seal
from holdfast_proto.state_value import read_state
from holdfast_proto.v1.store_pb2 import CoordinatorState, Incident, NodeState, RankState, RunSpec
from tests.multinode.cluster import is_alive
from tests.multinode.network import Link, Network, network
from tests.support.local_runs import wait_for

RUN = "observed"
PORT = 29400
PATIENCE_S = 60.0
ENDLESS = 1_000_000
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Words before a command that has process numbers of its own."""
CONTAINER_FOLDER = "/dev/shm"
HOLDFAST = (sys.executable, "-P", "-m", "holdfast_cli")
SCRIPT = Path(__file__).with_name("observed_script.py")
LAUNCHER = Path(__file__).with_name("stand_in_launcher.py")


@dataclass
class ObservedCluster:
    """See :func:`observed_cluster`."""

    net: Network
    folder: Path
    socket: Path
    """Unix socket of Redis, for this process."""
    ranks_per_node: int = 2
    processes: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    """Node -> its ``holdfast observe``."""
    server: "subprocess.Popen[bytes] | None" = None
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Value in the environment of every process of this cluster."""

    def start_redis(self) -> None:
        settings = {"bind": self.net.address(0, Link.CONTROL), "protected-mode": "no", "save": ""}
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        command = [str(find_server()), *words, "--dir", str(self.folder), "--unixsocket", str(self.socket)]
        with (self.folder / "redis.log").open("ab") as log:
            self.server = subprocess.Popen(self.net.inside(0, command), stdout=log, stderr=log)
        wait_for(lambda: answers(f"unix://{self.socket}"), "Redis")

    def lose_redis(self) -> None:
        """SIGKILL Redis. Nothing of what it knew is left."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()
        self.socket.unlink(missing_ok=True)

    def ask(self, node: int, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of ``holdfast`` about the run in a shell of a node that has a daemon."""
        where = ["--directory", str(self.folder), "--run", f"{RUN}@{name_of(node)}"]
        words = self.net.inside(node, [*HOLDFAST, command, *arguments, *where])
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S)

    def steps_done(self, rank: int) -> int:
        """Return how many steps a rank has done, by its own count: neither Redis nor an agent is asked."""
        path = self.folder / f"steps-{rank}"
        return path.stat().st_size if path.exists() else 0

    def torchrun(self, node: int, *arguments: str, steps: int = ENDLESS, wrapper: Sequence[str] = ()) -> list[str]:
        """Return the command line of one node's torchrun. ``wrapper``: a command that starts the command of a rank."""
        script = [str(SCRIPT), str(steps), str(self.folder)]
        return [
            *TORCHRUN, "--nnodes", str(self.net.size - 1), "--nproc-per-node", str(self.ranks_per_node),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.net.address(1, Link.DATA)}:{PORT}",
            "--rdzv-conf", f"is_host={int(node == 1)}", "--local-addr", self.net.address(node, Link.DATA),
            *arguments, *(["--no-python", *wrapper, sys.executable] if wrapper else []), *script,
        ]  # fmt: skip

    def observe(self, node: int, *command: str, flags: Sequence[str] = ()) -> None:
        """Start ``holdfast observe`` on a node, with more ``flags``."""
        self._start(node, [*self._observe(), "--node", name_of(node), *flags, "--", *command])

    def observe_in_container(self, node: int, *command: str) -> None:
        """Start ``holdfast observe`` and its command in a container of their own.

        It has process numbers, a host name, shared memory and a place for sockets that nobody else sees.
        """
        lines = f'hostname {name_of(node)}; mount -t tmpfs none {CONTAINER_FOLDER}; exec "$@"'
        container = [*UNSHARE, "--mount", "--uts", "sh", "-ec", lines, "container"]
        self._start(node, [*container, *self._observe(), "--", *command], XDG_RUNTIME_DIR=CONTAINER_FOLDER)

    def launch_observed(self, node: int, kind: str) -> None:
        """Start a stand-in for mpirun or srun on a node. Each rank is under ``holdfast observe --per-rank``."""
        script = [sys.executable, str(SCRIPT), str(ENDLESS), str(self.folder)]
        rank = [*self._observe(), "--node", name_of(node), "--per-rank", "--", *script]
        self._start(node, [sys.executable, str(LAUNCHER), kind, str(node), *rank])

    def _observe(self) -> list[str]:
        where = ["--redis", f"redis://{self.net.address(0, Link.CONTROL)}:6379", "--directory", str(self.folder)]
        who = ["--run", RUN, "--nodes", str(self.net.size - 1), "--preset", "fast"]
        return [*HOLDFAST, "observe", *where, *who]

    def _start(self, node: int, command: Sequence[str], **others: str) -> None:
        environment = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": Link.DATA.value,
            "OMP_NUM_THREADS": "1",
            # Else torchrun's restarts share one store, and ranks may read what those of an earlier generation left.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "HOLDFAST_TEST_MARK": self.mark,
            "MASTER_ADDR": self.net.address(1, Link.DATA),
            "MASTER_PORT": str(PORT + 1),
            **others,
        }
        with (self.folder / f"observe-{node}.log").open("ab") as log:
            inside = self.net.inside(node, command)
            self.processes[node] = subprocess.Popen(inside, env=environment, stdout=log, stderr=log)

    def observe_torchrun(self, *arguments: str, steps: int = ENDLESS) -> None:
        """Start torchrun on all nodes under ``holdfast observe``."""
        for node in range(1, self.net.size):
            self.observe(node, *self.torchrun(node, *arguments, steps=steps))

    def meet(self, script: Path, steps: str, *, spares: int = 1, **settings: str) -> None:
        """Start a torchrun on each node that meets the others in Redis. Some of them are spares.

        ``settings``: what else ``--rdzv-conf`` says, such as flags of ``holdfast observe``.
        """
        RunKeyFile(run_key(self.folder, RUN), RUN).make()
        for node in range(1, self.net.size):
            self.join(node, script, steps, spares=spares, **settings)

    def join(self, node: int, script: Path, steps: str, *, spares: int = 1, **settings: str) -> None:
        """Start the torchrun of one node."""
        key = run_key(self.folder, RUN)
        common = {"preset": "fast", "console": "false", "directory": str(self.folder), "run_key_file": str(key)}
        conf = {**common, "checkpoints": str(self.folder / "checkpoints"), **settings, "node": name_of(node)}
        last = self.net.size - 1
        words = [
            *TORCHRUN, "--nnodes", f"{last - spares}:{last}", "--max-restarts", "3",
            "--nproc-per-node", str(self.ranks_per_node), "--rdzv-backend", "holdfast", "--rdzv-id", RUN,
            "--rdzv-endpoint", f"redis://{self.net.address(0, Link.CONTROL)}:6379",
            "--rdzv-conf", ",".join(f"{name}={value}" for name, value in conf.items()),
            "--local-addr", self.net.address(node, Link.DATA), str(script), str(self.folder), steps,
        ]  # fmt: skip
        self._start(node, words)

    def ranks_of(self, node: int) -> list[int]:
        """Return the ranks that the agent of a node reports."""
        return [rank.rank for state in self.states() if state.node == name_of(node) for rank in state.ranks]

    def log(self, node: int) -> str:
        """Return what the observation of a node has printed, with the launcher's output."""
        return (self.folder / f"observe-{node}.log").read_text()

    def incident_lines(self, node: int) -> list[str]:
        """Return the lines about verdicts on a node."""
        return re.findall(r"^incident \S+: (?![+-]).*", self.log(node), re.MULTILINE)

    def until_line(self, node: int, text: str) -> str:
        """Wait until a node has printed a line with a text, and return the line."""

        def look() -> str | None:
            return next((line for line in self.log(node).splitlines() if text in line), None)

        return wait_for(look, f"{text!r} on node {node}, which has printed {self.log(node)[-2000:]}")

    def codes(self) -> list[int]:
        """Return the exit codes of all observations, in the order of the nodes."""
        return [self.processes[node].wait(PATIENCE_S) for node in sorted(self.processes)]

    def record(self) -> CoordinatorState:
        data, seal = self._client().get(keys.state(RUN)), self._seal()
        assert data is None or isinstance(data, bytes)
        return CoordinatorState.FromString(seal.open(keys.state(RUN), data).content if seal and data else b"")

    def states(self) -> list[NodeState]:
        """Return what the agents of the nodes report; those that are gone are left out."""
        keys_of_nodes = [keys.node(RUN, name_of(node)) for node in range(1, self.net.size)]
        found, seal = {key: self._client().get(key) for key in keys_of_nodes}, self._seal()
        return [
            read_state(seal.open(key, data).content) for key, data in found.items() if seal and isinstance(data, bytes)
        ]

    def _seal(self) -> Seal | None:
        """Return the seal of the run's values; None: it has no spec."""
        data = self._client().get(keys.spec(RUN))
        if not isinstance(data, bytes):
            return None
        key = RunKeyFile(run_key(self.folder, RUN), RUN).read()
        return key.seal_of(RunSpec.FromString(key.seal.open(keys.spec(RUN), data).content).instance)

    def ranks(self) -> dict[int, RankState]:
        """Return the ranks that the agents of the nodes report."""
        return {rank.rank: rank for state in self.states() for rank in state.ranks}

    def until_step(self, step: int, generation: int = 1) -> dict[int, int]:
        """Wait until all ranks have finished a step; return rank -> pid."""

        def look() -> dict[int, int] | None:
            record = self.record()
            ranks = self.ranks()
            reached = record.generation == generation and record.newest_step >= step
            return {number: rank.pid for number, rank in ranks.items()} if reached else None

        return wait_for(look, f"step {step}")

    def first_incident(self) -> Incident:
        return wait_for(self.incidents, "an incident")[0]

    def incidents(self) -> list[Incident]:
        seal = self._seal()
        return StoreView(self._client(), RUN, name_of(1), seal).incidents() if seal else []

    def _client(self) -> "redis.Redis":
        return connect(f"unix://{self.socket}")

    def pid_of(self, rank: int) -> int:
        """Return the pid of a rank that torchrun has started, as this process sees it."""
        mark = f"\0RANK={rank}\0".encode()
        return next(pid for pid in self.alive() if mark in _environment(pid) and is_alive(pid))

    def leading_node(self) -> int | None:
        """Return the node whose daemon leads."""
        lease = self._client().get(keys.leader(RUN))
        found = re.match(rb"node-(\d+)", lease) if isinstance(lease, bytes) else None
        return int(found[1]) if found else None

    def lose(self, node: int) -> None:
        """Let a node vanish: nothing of it reaches another node any more, and none of its processes remains."""
        self.net.cut(node, Link.CONTROL, Link.DATA)
        here = Path(f"/run/netns/{self.net.namespace(node)}").stat().st_ino
        for pid in self.alive():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/ns/net").stat().st_ino == here:
                    os.kill(pid, signal.SIGKILL)

    def alive(self) -> list[int]:
        """Return the pids of all processes of this cluster."""
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in pids if self.mark.encode() in _environment(pid)]

    def close(self) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (*self.processes.values(), *filter(None, [self.server])):
            process.kill()
            process.wait()


def name_of(node: int) -> str:
    return f"node-{node}"


def _environment(pid: int) -> bytes:
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def observed_cluster(folder: Path, *, nodes: int = 2, ranks_per_node: int = 2) -> Iterator[ObservedCluster]:
    """Yield nodes 1 to ``nodes``, and Redis on node 0. End everything afterwards."""
    with network(nodes + 1) as net, tempfile.TemporaryDirectory(prefix="hf-", dir="/dev/shm") as memory:
        made = ObservedCluster(net, folder, Path(memory) / "redis.sock", ranks_per_node)
        try:
            made.start_redis()
            yield made
        finally:
            made.close()
