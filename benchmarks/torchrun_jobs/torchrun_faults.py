"""Faults of ranks and nodes under torchrun, with Holdfast's rendezvous and with torch's: see recovery.py.

A job has two nodes with one rank each, and a spare. All are on this machine. The time of a fault ends with the first
step that the job had not done before.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast_base.run_processes import kill_all, marked_processes
from holdfast_cli.local_run.redis_server import answers, find_server, server_command
from holdfast_proto.run_key import RunKeyFile

NODES = ("a", "b", "c")
FAULTS = ("killed rank", "hung rank", "lost node")
STEPS_BEFORE = 90
"""Steps before a fault. Checkpoints of the script itself come every 20 steps, so plain torchrun loses ten."""
PATIENCE_S = 120.0
"""Longest wait for a job to continue. gloo gives up a call after 30 minutes, NCCL after 10."""
_SCRIPT = Path(__file__).with_name("torchrun_ranks.py")
_MARK = "HOLDFAST_BENCHMARK_NODE"


@dataclass(frozen=True)
class Job:
    """A job of three torchruns."""

    folder: Path
    options: tuple[str, ...]
    """Options of each torchrun; ``{node}`` stands for its node."""

    def start(self) -> None:
        """Start the torchruns, the spare last: torch's own rendezvous gives ranks by the order of arrival."""
        for node in NODES:
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=3"]
            options = [option.format(node=node) for option in (*self.options, "--local-addr=127.0.0.1")]
            with (self.folder / f"{node}.log").open("w") as log:
                subprocess.Popen(
                    [*command, *options, str(_SCRIPT), str(self.folder)],
                    cwd=self.folder,
                    env={**os.environ, "OMP_NUM_THREADS": "1", _MARK: self._mark(node)},
                    stdout=log,
                    stderr=log,
                )
            time.sleep(1.0)

    def lose(self, node: str) -> None:
        """Kill all processes of a node."""
        kill_all(list(marked_processes(_MARK, self._mark(node))))

    def end(self) -> None:
        """Kill what is left."""
        for node in NODES:
            self.lose(node)

    def pid(self, rank: int) -> int:
        """Return the pid of a rank's newest process."""
        return int((self.folder / f"pid-{rank}").read_text())

    def steps(self) -> list[tuple[float, int]]:
        """Return the time and the number of each step, in the order of their ends."""
        with suppress(FileNotFoundError):
            lines = (self.folder / "steps").read_text().splitlines()
            return [(float(ended), int(step)) for ended, step in map(str.split, lines)]
        return []

    def newest(self) -> int:
        """Return the newest step that has ended; -1: none has."""
        return max((step for _, step in self.steps()), default=-1)

    def _mark(self, node: str) -> str:
        return f"{self.folder}/{node}"


def measure(say: Callable[[str], None]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return fault -> launcher -> seconds and steps lost; seconds are None if the job did not continue in time."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for fault in FAULTS:
        found[fault] = {}
        for name, job_of in (("holdfast", _holdfast_job), ("plain", _plain_job)):
            say(f"{fault} under {'torchrun with Holdfast' if name == 'holdfast' else 'plain torchrun'}")
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, job_of(Path(folder)) as job:
                found[fault][name] = _cost_of(fault, job)
    return found


def _cost_of(fault: str, job: Job) -> dict[str, float | None]:
    job.start()
    _wait(lambda: job.newest() >= STEPS_BEFORE)
    reached, struck = job.newest(), time.time()
    if fault == "lost node":
        job.lose("b")
    else:
        os.kill(job.pid(1), signal.SIGKILL if fault == "killed rank" else signal.SIGSTOP)
    if not _wait(lambda: job.newest() > reached + 2):
        return {"continued_s": None, "steps_lost": None}
    later = [(ended, step) for ended, step in job.steps() if ended > struck]
    first_new = next(ended for ended, step in later if step > reached + 1)  # one step may have been under way
    lost = max(0, reached + 1 - min(step for _, step in later))
    return {"continued_s": round(first_new - struck, 1), "steps_lost": lost}


def _wait(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def _holdfast_job(folder: Path) -> Iterator[Job]:
    socket, key, data = folder / "redis.sock", folder / "bench.key", folder / "redis"
    data.mkdir()
    RunKeyFile(key, "bench").make()
    url, job = f"unix://{socket}", None
    with subprocess.Popen(server_command(find_server(), data, socket), stdout=subprocess.DEVNULL) as server:
        try:
            _wait(lambda: answers(url, None))
            conf = f"node={{node}},run_key_file={key},checkpoints={folder}/checkpoints,snapshot_every=1"
            conf += ",checkpoint_every=20,replicate_every=1,preset=fast,restart_patience=0.1"
            conf += ",directory=runs,console=false"
            where = (f"--rdzv-endpoint={url}", "--rdzv-id=bench", f"--rdzv-conf={conf}")
            job = Job(folder, ("--rdzv-backend=holdfast", "--nnodes=2:3", *where))
            yield job
        finally:
            if job is not None:
                job.end()
            server.terminate()
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


@contextmanager
def _plain_job(folder: Path) -> Iterator[Job]:
    # Each node a store of its own for the ranks: with a shared one, a restart over several nodes hangs.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    job = Job(folder, ("--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=127.0.0.1:29533", "--rdzv-id=bench"))
    try:
        yield job
    finally:
        job.end()
