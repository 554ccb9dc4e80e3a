"""Round after round of faults that a dice chooses, on one real run. It must end as if nothing had happened.

No clock jumps: a time namespace does not move the time of day, and nothing else moves it for one process alone.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast_cli.run_folder.record import load_record
from holdfast_proto.run_files import process_log
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FAILED, RUN_PHASE_FINISHED, RUN_PHASE_RUNNING
from tests.chaos.conftest import CHECKPOINT_EVERY, PATIENCE_S, Runs, expect_the_weights_of, until
from tests.chaos.random_faults import HarmedRun, harm
from tests.chaos.test_checkpoint_outage import Disk
from tests.support.coroutines import wait_until
from tests.support.tmpfs import mounted_tmpfs

pytestmark = pytest.mark.system

SEED = "HOLDFAST_FAULTS_SEED"
"""Variable that repeats the faults of a seed. The output of the test begins with it."""
RANKS = 2
FLAGS = ("--parallel.dp=2", "--parallel.pp=1")
STEPS_PER_ROUND = 8
"""More than a round takes on average: harm lasts for 7 steps on average, and a restart trains none."""
LAST_STEPS = 150
"""Steps after the last round. A full checkpoint is among them, if they are trained without a pause."""
MOST_HARM_S = 2.0
"""Longest time for which a process is stopped, a disk full, or no descriptor free."""
LOGS = ("holdfast", "agent", "daemon")
SHOWN = 30
"""Newest lines of each log that are printed at the end. The logs go with the run's file system."""
CALM, ROUGH = "calm", "rough"


@contextlib.contextmanager
def harmed_run(runs: Runs, steps: int, folder: Path) -> Iterator[HarmedRun]:
    """Yield a ``holdfast run``. Its folder and its snapshots have file systems of their own, if they can be mounted."""
    runs.hurry_file(ROUGH).unlink(missing_ok=True)
    options = runs.options(ROUGH, steps=steps, flags=FLAGS)
    memory = folder / "memory"
    with ExitStack() as stack:
        disks = []
        for path, size in ((runs.folder / ROUGH, "256m"), (memory, "16m")):
            try:
                disks.append(Disk(stack.enter_context(mounted_tmpfs(path, size, lazily_unmounted=True))))
            except pytest.skip.Exception:
                path.mkdir(exist_ok=True)
        words = ["--run", ROUGH, "--directory", str(runs.folder), "--ranks", str(RANKS), "--snapshot-every", "1"]
        words += ["--checkpoint-every", str(CHECKPOINT_EVERY), "--preset", "fast", "--shm-directory", str(memory)]
        command = [sys.executable, "-m", "holdfast_cli", "run", *words, "--", *options.command]
        output = stack.enter_context((folder / "output").open("wb"))
        environment = {**os.environ, **options.environment}
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            record = wait_until(lambda: load_record(runs.folder / ROUGH), "the run has a record")
            yield HarmedRun(process, record, tuple(disks))
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            for path in (folder / "output", *(process_log(runs.folder / ROUGH, each) for each in LOGS)):
                print(f"{path.name}:", "".join(path.read_text(errors="replace").splitlines(keepends=True)[-SHOWN:]))


def until_trained(run: HarmedRun, step: int) -> int:
    """Wait until all ranks train and a step after ``step`` has ended. Return the newest step."""

    def trains(status: RunStatus) -> bool:
        assert run.process.poll() is None, "the run has ended"
        assert status.phase != RUN_PHASE_FAILED, status.outcome
        return status.phase == RUN_PHASE_RUNNING and len(status.ranks) == RANKS and status.newest_step > step

    return until(run.control, trains).newest_step


def outlive(runs: Runs, folder: Path, rounds: int, seed: int) -> None:
    """Harm a run in ``rounds`` rounds, and compare its end with that of a run that nothing happens to."""
    print(f"{SEED}={seed}")
    steps = rounds * STEPS_PER_ROUND + LAST_STEPS
    with runs.run(CALM, steps=steps, ranks=RANKS, flags=FLAGS, checkpoint_every=0, hurry=True) as calm:
        assert calm.wait(timeout_s=PATIENCE_S + steps).phase == RUN_PHASE_FINISHED
    with harmed_run(runs, steps, folder) as run:
        began_s = time.monotonic()
        reached = until_trained(run, 2)
        for number in range(rounds):
            dice = random.Random(f"{seed}/{number}")  # how often it was asked before depends on what was there to harm
            with ExitStack() as ends:
                done = harm(run, dice, ends)
                age_s = time.monotonic() - began_s
                print(f"round {number} after {age_s:.0f} s and step {reached}: {'; '.join(done)}", flush=True)
                time.sleep(dice.uniform(0.0, MOST_HARM_S))
            reached = until_trained(run, reached)
        runs.hurry(ROUGH)
        assert run.process.wait(PATIENCE_S + steps) == 0
        last = runs.final_checkpoint(CALM, steps - 1)
        expect_the_weights_of(last, runs, ROUGH, steps - 1, run.record.checkpoint_directory)
        assert not runs.processes(ROUGH)
        assert not Path(run.record.runtime_directory).exists()
        assert not Path(run.record.shm_directory).exists()


def test_a_run_outlives_faults_of_every_kind(runs: Runs, tmp_path: Path) -> None:
    outlive(runs, tmp_path, 20, int(os.environ.get(SEED, "1")))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_run_outlives_very_many_faults_of_every_kind(runs: Runs, tmp_path: Path) -> None:
    outlive(runs, tmp_path, 500, int(os.environ.get(SEED, int.from_bytes(os.urandom(4)))))
