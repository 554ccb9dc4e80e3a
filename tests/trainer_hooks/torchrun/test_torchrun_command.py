"""Real jobs of torchrun with this rendezvous: ranks and nodes die, and the rest continues to the same bits."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_base.run_processes import kill_all, marked_processes
from holdfast_proto import keys
from tests.support.coroutines import PATIENCE_S
from tests.support.run_keys import write_key
from tests.support.store_server import StoreServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

MARK = "HOLDFAST_TEST_NODE"
STEPS = 40
LATER_PATIENCE_S = 3 * PATIENCE_S
"""Three torchruns with an agent and a daemon each start slowly on a busy machine."""

SCRIPT = """
import hashlib, os, pathlib, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import holdfast_hooks

folder, steps, victim = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
state = {"model": model, "optimizer": optimizer}
maps = pathlib.Path("/proc/self/maps")
with holdfast_hooks.attach(state=state, check_data_position=False) as hooks:
    for step in hooks.steps(until=steps):
        while step == 3 and "HOLDFAST_CONTEXT" in os.environ and ".slot" not in maps.read_text():
            time.sleep(0.02)  # later steps have snapshots
        if rank == victim and step == 12 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(3)
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        hooks.enter(holdfast_hooks.Phase.OPTIMIZER)
        optimizer.step()
        optimizer.zero_grad()
        hooks.report(loss=loss)
        if rank == 0 and step == 20:
            (folder / "middle").touch()
            while not (folder / "go").exists():
                time.sleep(0.02)
if rank == 0:
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
dist.destroy_process_group()
"""

PLAIN_SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(3)
total = torch.tensor([rank + 1])
dist.all_reduce(total)
sys.stdout.write(f"rank {rank} of {dist.get_world_size()}: {total.item()}\\n")
dist.destroy_process_group()
"""

LOOP_SCRIPT = """
import os, pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} after {restarts} failures\\n")
sys.stdout.flush()
ends = torch.zeros(1)
while not ends.item():
    ends.fill_(pathlib.Path("go").exists())
    dist.all_reduce(ends)
    time.sleep(0.02)
dist.destroy_process_group()
"""

Job = subprocess.Popen[bytes]


def await_slowly(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LATER_PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


class Jobs:
    """Starts torchruns in a folder, each as a node of its own, and ends them with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._all: dict[str, Job] = {}
        (folder / "state.py").write_text(SCRIPT)
        (folder / "plain.py").write_text(PLAIN_SCRIPT)
        (folder / "loop.py").write_text(LOOP_SCRIPT)

    def start(self, node: str, *words: str, backend: str = "holdfast", ranks: int = 1) -> Job:
        """Start a torchrun. Its output is in files of the folder."""
        command = [sys.executable, "-m", "torch.distributed.run", f"--rdzv-backend={backend}"]
        options = [f"--nproc-per-node={ranks}", "--max-restarts=2", "--local-addr=127.0.0.1"]
        with (self.folder / f"{node}.out").open("w") as out, (self.folder / f"{node}.err").open("w") as errors:
            job = subprocess.Popen(
                [*command, *options, *words],
                cwd=self.folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", MARK: f"{self.folder}/{node}"},
                stdout=out,
                stderr=errors,
            )
        self._all[node] = job
        return job

    def finish(self, node: str) -> list[str]:
        """Wait until a node ends well; return the lines of its output."""
        code = self._all[node].wait(LATER_PATIENCE_S)
        assert code == 0, self.errors(node)
        return self.lines(node)

    def lines(self, node: str) -> list[str]:
        return (self.folder / f"{node}.out").read_text().splitlines()

    def errors(self, node: str) -> str:
        return (self.folder / f"{node}.err").read_text()

    def lose(self, node: str) -> None:
        """Kill all processes of a node."""
        kill_all(list(marked_processes(MARK, f"{self.folder}/{node}")))
        self._all[node].wait()

    def wait_for_middle(self) -> None:
        await_slowly((self.folder / "middle").exists, "step 20 is reached")

    def go(self) -> None:
        """Let the ranks go on after the middle."""
        (self.folder / "go").touch()

    def end(self) -> None:
        for node in self._all:
            self.lose(node)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.end()


def script(jobs: Jobs, victim: int = -1) -> list[str]:
    return ["state.py", str(jobs.folder), str(STEPS), str(victim)]


def undisturbed(jobs: Jobs) -> list[str]:
    """Return the weights of the same world under plain torchrun, as the line that a job prints.

    A rank of torch may abort as it exits, after it has trained. Plain torchrun then trains and prints once more.
    """
    jobs.go()
    jobs.start("plain", "--rdzv-endpoint=localhost:0", *script(jobs), backend="c10d", ranks=2)
    return jobs.finish("plain")[-1:]


@pytest.mark.gate
def test_one_node_restores_a_killed_rank_from_memory_with_a_redis_of_its_own(jobs: Jobs) -> None:
    weights = undisturbed(jobs)
    jobs.start("a", "--nnodes=1", "--rdzv-conf=snapshot_every=1", *script(jobs, victim=1), ranks=2)
    assert jobs.finish("a") == weights
    errors = jobs.errors("a")
    assert "generation 2 starts from memory after step 11" in errors
    assert "training again" in errors


def test_two_nodes_come_back_together_and_a_spare_takes_the_place_of_a_lost_node(
    jobs: Jobs, store_server: StoreServer
) -> None:
    """torchrun counts the restart on the node of the dead rank alone, and the ranks find each other even so."""
    weights = undisturbed(jobs)
    (jobs.folder / "go").unlink()
    (jobs.folder / "middle").unlink()
    key = write_key(jobs.folder, "pair")

    def start(node: str) -> Job:
        place = f"checkpoints={jobs.folder}/checkpoints,snapshot_every=1,checkpoint_every=5,directory={node}"
        conf = f"--rdzv-conf=node={node},run_key_file={key},{place},preset=fast,replicate_every=0"
        words = ["--nnodes=2:3", "--rdzv-id=pair", f"--rdzv-endpoint={store_server.url}", conf]
        return jobs.start(node, *words, *script(jobs, victim=0))

    start("a")
    start("b")
    with store_server.client() as client:
        await_slowly(lambda: client.exists(keys.meeting_world("pair")), "a and b have formed a world")
        spare = start("c")
        await_slowly(lambda: client.hexists(keys.meeting_records("pair"), "c"), "the spare waits")
    jobs.wait_for_middle()
    restored = "generation 2 starts from memory after step 11"
    await_slowly(lambda: restored in jobs.errors("a"), restored)
    await_slowly(lambda: " committed" in jobs.errors("a"), "a checkpoint of both nodes")
    jobs.lose("b")
    jobs.go()
    assert jobs.finish("a") == weights
    jobs.finish("c")
    assert spare.returncode == 0
    assert "generation 3 starts from a checkpoint after step " in jobs.errors("a")


def test_a_plain_script_is_watched_without_a_line_and_a_spare_that_is_not_needed_leaves(
    jobs: Jobs, store_server: StoreServer
) -> None:
    key = write_key(jobs.folder, "pair")

    def start(node: str) -> Job:
        conf = f"--rdzv-conf=node={node},run_key_file={key},directory={node},preset=fast"
        return jobs.start(
            node, "--nnodes=2:3", "--rdzv-id=pair", f"--rdzv-endpoint={store_server.url}", conf, "plain.py"
        )

    for node in "abc":
        start(node)
    printed = {node: jobs.finish(node) for node in "abc"}
    (spare,) = (node for node, lines in printed.items() if not lines)  # the one that came last
    first, second = (node for node in "abc" if node != spare)
    assert (printed[first], printed[second]) == (["rank 0 of 2: 3"], ["rank 1 of 2: 3"])
    assert "run pair has ended, this spare node was not needed" in jobs.errors(spare)
    assert "attached by itself, rank 0 of 2" in jobs.errors(first)


def test_without_a_key_nodes_train_together_unwatched(jobs: Jobs, store_server: StoreServer) -> None:
    for node in "ab":
        conf = f"--rdzv-conf=node={node}"
        jobs.start(node, "--nnodes=2", "--rdzv-id=pair", f"--rdzv-endpoint={store_server.url}", conf, "plain.py")
    assert (jobs.finish("a"), jobs.finish("b")) == (["rank 0 of 2: 3"], ["rank 1 of 2: 3"])
    assert jobs.errors("a").count("is not watched") == 1


def test_a_job_continues_with_fewer_nodes_until_further_ones_come(jobs: Jobs, store_server: StoreServer) -> None:
    def start(node: str) -> None:
        conf = f"--rdzv-conf=node={node},shrink_to=2,resize_after=1"
        jobs.start(node, "--nnodes=3", "--rdzv-id=trio", f"--rdzv-endpoint={store_server.url}", conf, "loop.py")

    def see(node: str, rank: int, size: int) -> None:
        what = f"rank {rank} of {size}"
        await_slowly(lambda: any(line.startswith(what) for line in jobs.lines(node)), f"{node} is {what}")

    for node in "abc":
        start(node)
    for rank, node in enumerate("abc"):
        see(node, rank, 3)
    jobs.lose("b")
    see("a", 0, 2)
    see("c", 1, 2)
    start("d")
    see("d", 2, 3)
    jobs.go()
    for node in "acd":
        jobs.finish(node)
    assert "run trio continues with 2 of 3 nodes: none came within 1 s" in jobs.errors("a")


def test_a_wrong_setting_is_refused_before_a_rank_exists(jobs: Jobs) -> None:
    job = jobs.start("a", "--nnodes=1", "--rdzv-conf=checkpoint_every=often", "plain.py")
    assert job.wait(LATER_PATIENCE_S) == 1
    assert "Holdfast refuses a setting, see the line above: correct --rdzv-conf" in jobs.errors("a")


def test_a_torchrun_with_another_rendezvous_pays_nothing(tmp_path: Path) -> None:
    looked = (
        "import sys, holdfast_torchrun; holdfast_torchrun.creator(); print(len([m for m in sys.modules if 'redis' in"
    )
    looked += " m or m.startswith('torch')]))"
    found = subprocess.run([sys.executable, "-c", looked], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout == "0\n"
