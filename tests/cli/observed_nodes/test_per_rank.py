"""The processes that srun or mpirun start: one lock for each node and launch, and a rank that is what it was before."""

import os
import subprocess
import sys
import time
from pathlib import Path

from holdfast_cli.observed_nodes.per_rank import NodeRanks

PATIENCE_S = 30.0
ENTER = "from holdfast_cli.observed_nodes.per_rank import NodeRanks; NodeRanks.of('r', 'a', {}).enter(); input()"


def test_the_first_process_of_a_launch_gets_the_lock_and_the_others_do_not(short_directory: Path) -> None:
    first = NodeRanks.of("r", "a", {"SLURM_STEP_ID": "0"})
    assert first.runtime.parent == short_directory
    lock = first.enter()
    assert lock is not None
    assert NodeRanks.of("r", "a", {"SLURM_STEP_ID": "0"}).enter() is None
    others = [NodeRanks.of("r", "a", {"SLURM_STEP_ID": "1"}), NodeRanks.of("r", "b", {"SLURM_STEP_ID": "0"})]
    assert all(other.enter() is not None for other in others)
    assert first.any_alive()
    os.close(lock)


def test_a_launch_is_over_when_its_processes_are_gone(short_directory: Path) -> None:
    ranks = NodeRanks.of("r", "a", {})
    with subprocess.Popen([sys.executable, "-c", ENTER], stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not (ranks.folder / str(process.pid)).exists():
            assert time.monotonic() < deadline
        assert ranks.any_alive()
        process.communicate(b"\n")
    assert not ranks.any_alive()
    ranks.remove()
    assert not ranks.folder.exists()


def test_without_redis_the_rank_runs_unwatched_with_its_own_pid_output_and_exit_code(short_directory: Path) -> None:
    observe = [sys.executable, "-m", "holdfast_cli", "observe", "--per-rank", "--run", "r", "--node", "a"]
    where = ["--redis", f"unix://{short_directory}/none.sock", "--directory", str(short_directory / "runs")]
    command, pipe = [*observe, *where, "--", "sh", "-c", "echo $$; exit 7"], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    printed, log = process.communicate(timeout=PATIENCE_S)  # the end of its output: the observation has ended too
    assert (printed, process.returncode) == (f"{process.pid}\n", 7)
    assert log.count("\n") == 1 and "check --redis" in log and "the ranks of node a are not watched" in log
