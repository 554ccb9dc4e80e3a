"""``holdfast observe --restore`` with a real torchrun: its ranks continue to the same bits."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_proto.v1 import store_pb2 as store
from tests.chaos.conftest import Runs
from tests.chaos.test_observe import Observed, observed
from tests.chaos.test_on_hang import incidents_of, story_of

pytestmark = pytest.mark.system

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
STEPS = 60
RESTORE = ("--restore", "--snapshot-every", "1", "--checkpoint-every", "20")
RESTART = ("--on-hang", "restart", "--restart-patience", "0.1")

SCRIPT = """
import hashlib, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import holdfast_hooks

steps, store, result, bad = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = f"file://{store}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
state = {"model": model, "optimizer": optimizer}
with holdfast_hooks.attach(state=state, check_data_position=False, data_by_step=True) as hooks:
    for step in hooks.steps(until=steps):
        time.sleep(0.03)
        factor = float("nan") if hooks.data_of(step) == bad else 1.0
        loss = model(torch.randn(8, 16) * factor).square().mean()
        loss.backward()
        hooks.enter(holdfast_hooks.Phase.OPTIMIZER)
        optimizer.step()
        optimizer.zero_grad()
        hooks.report(loss=loss)
if rank == 0:
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    open(result, "w").write(hashlib.sha256(weights).hexdigest())
dist.destroy_process_group()
"""

Command = Callable[..., list[str]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Return a function that gives torchrun's words for a start that leaves its weights' digest in a file.

    ``bad``: number of data that ruin the weights.
    """
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)

    def words(name: str, *, steps: int = STEPS, restarts: int = 0, bad: int = -1) -> list[str]:
        script = [str(path), str(steps), str(tmp_path / f"{name}-store"), str(tmp_path / name), str(bad)]
        return [*TORCHRUN, "--max-restarts", str(restarts), *script]

    return words


def finish(watched: Observed) -> str:
    code, log = watched.end()
    assert code == 0, log
    return log


def recovered(watched: Observed) -> store.Incident:
    """Return the only incident, which must tell of a recovery from memory."""
    (incident,) = (one for one in incidents_of(watched) if one.state != store.INCIDENT_STATE_RESOLVED)
    assert incident.state == store.INCIDENT_STATE_RECOVERED, story_of(incident)
    assert "generation 2 starts from memory after step " in story_of(incident)
    return incident


@pytest.mark.gate
def test_killed_and_hung_ranks_and_a_later_start_continue_to_the_bits_of_an_undisturbed_run(
    runs: Runs, command: Command, tmp_path: Path
) -> None:
    with observed(runs, "plain", *command("plain")) as watched:
        finish(watched)
    with observed(runs, "killed", *command("killed", restarts=1), options=RESTORE) as watched:
        pids = watched.pids_at_step(10)
        os.kill(pids[1], signal.SIGKILL)
        log = finish(watched)
    assert "killed finished, generation 2" in log
    assert recovered(watched).verdict.kind == store.VERDICT_KIND_DEAD_RANK
    with observed(runs, "hung", *command("hung", restarts=1), options=(*RESTORE, *RESTART)) as watched:
        pids = watched.pids_at_step(10)
        os.kill(pids[0], signal.SIGSTOP)
        finish(watched)
    assert list(recovered(watched).verdict.culprits) == [0]
    with observed(runs, "later", *command("first", steps=30), options=RESTORE) as watched:
        finish(watched)
    with observed(runs, "later", *command("later"), options=RESTORE) as watched:
        status = watched.until(lambda status: status.newest_step > 30)
        assert status.resumed_step == 29
        log = finish(watched)
    assert "later finished" in log
    with observed(runs, "later", *command("third", steps=STEPS + 10), options=RESTORE) as watched:
        finish(watched)  # from a checkpoint that the second start has written
    assert "resumed at step 60" in watched.log.read_text()
    digests = {name: (tmp_path / name).read_text() for name in ("plain", "killed", "hung", "later")}
    assert len(set(digests.values())) == 1, digests


def test_a_launcher_that_fails_leaves_a_checkpoint_of_the_newest_step_and_the_next_start_continues_there(
    runs: Runs, command: Command, tmp_path: Path
) -> None:
    with observed(runs, "failed", *command("failed"), options=RESTORE) as watched:
        pids = watched.pids_at_step(12)
        os.kill(pids[1], signal.SIGKILL)
        code, log = watched.end()
    assert code == 1, log
    with observed(runs, "failed", *command("again"), options=RESTORE) as watched:
        status = watched.until(lambda status: status.newest_step > 20)
        assert status.resumed_step >= 11
        finish(watched)
    assert (tmp_path / "again").exists()


def test_a_bad_loss_rolls_the_ranks_of_a_launcher_back_to_the_bits_of_a_run_without_its_data(
    runs: Runs, command: Command, tmp_path: Path
) -> None:
    rolling = (*RESTORE, *RESTART, "--on-nan", "roll_back")
    with observed(runs, "rolled", *command("rolled", restarts=1, bad=25), options=rolling) as watched:
        finish(watched)
    (incident,) = (one for one in incidents_of(watched) if one.state != store.INCIDENT_STATE_RESOLVED)
    story = story_of(incident)
    assert incident.state == store.INCIDENT_STATE_RECOVERED, story
    assert "rolls back, 1 of 10: to the newest state of all ranks from before step 24" in story
    left_out = re.search(r"without the data of steps (\d+-35)\b", story)
    assert left_out is not None, story
    without = (*RESTORE, "--leave-out", left_out[1])
    with observed(runs, "without", *command("without", bad=25), options=without) as watched:
        finish(watched)
    assert (tmp_path / "rolled").read_text() == (tmp_path / "without").read_text()
