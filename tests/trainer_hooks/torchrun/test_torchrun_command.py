"""Real jobs of torchrun with this rendezvous: a rank dies, and all of them come back over gloo."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_proto import keys
from tests.support.coroutines import PATIENCE_S, wait_until
from tests.support.run_keys import write_key
from tests.support.store_server import StoreServer

pytestmark = pytest.mark.system

SCRIPT = """
import os, pathlib, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(3)
total = torch.tensor([rank + 1])
dist.all_reduce(total)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
sys.stdout.write(f"rank {rank} of {dist.get_world_size()}: {total.item()}\\n")
dist.destroy_process_group()
"""

Job = subprocess.Popen[str]


class Jobs:
    """Starts torchruns in a folder with the script, and ends them with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[Job] = []
        (folder / "train.py").write_text(SCRIPT)

    def start(self, *options: str) -> Job:
        """Start a torchrun of two ranks."""
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=holdfast", "--nproc-per-node=2"]
        job = subprocess.Popen(
            [*command, "--max-restarts=1", "--local-addr=127.0.0.1", *options, "train.py"],
            cwd=self._folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._all.append(job)
        return job

    def end(self) -> None:
        for job in self._all:
            if job.poll() is None:
                job.terminate()  # it ends its ranks
            job.communicate()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.end()


def test_a_rank_of_one_node_that_dies_comes_back_without_a_server(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    job = jobs.start("--nnodes=1")
    output, errors = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, sorted(output.splitlines())) == (0, ["rank 0 of 2: 3", "rank 1 of 2: 3"]), errors
    assert errors.count("is not watched") == 1


def test_two_nodes_come_back_together_and_a_spare_leaves_with_them(
    jobs: Jobs, tmp_path: Path, store_server: StoreServer
) -> None:
    """torchrun counts the restart on the node of the dead rank alone, and the ranks find each other even so."""
    key = write_key(tmp_path, "pair")

    def start(node: str) -> Job:
        conf = f"--rdzv-conf=node={node},run_key_file={key}"
        return jobs.start("--nnodes=2:3", "--rdzv-id=pair", f"--rdzv-endpoint={store_server.url}", conf)

    a, b = start("a"), start("b")
    with store_server.client() as client:
        wait_until(lambda: client.exists(keys.meeting_world("pair")), "a and b have formed a world")
        spare = start("c")
        wait_until(lambda: client.hexists(keys.meeting_records("pair"), "c"), "the spare waits")
    (tmp_path / "go").touch()
    (of_a, errors_of_a), (of_b, errors_of_b), (of_spare, errors) = (
        job.communicate(timeout=PATIENCE_S) for job in (a, b, spare)
    )
    assert sorted(of_a.splitlines()) == ["rank 0 of 4: 10", "rank 1 of 4: 10"], errors_of_a
    assert sorted(of_b.splitlines()) == ["rank 2 of 4: 10", "rank 3 of 4: 10"], errors_of_b
    assert [job.returncode for job in (a, b, spare)] == [0, 0, 0]
    assert (of_spare, errors) == ("", "holdfast: run pair has ended, this spare node was not needed\n")


def test_a_torchrun_with_another_rendezvous_pays_nothing(tmp_path: Path) -> None:
    looked = (
        "import sys, holdfast_torchrun; holdfast_torchrun.creator(); print(len([m for m in sys.modules if 'redis' in"
    )
    looked += " m or m.startswith('torch')]))"
    found = subprocess.run([sys.executable, "-c", looked], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout == "0\n"
