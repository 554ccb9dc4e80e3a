"""A real run that a bad sample ruins: it returns to a good state, and its weights are those of a run without it."""

import json
import subprocess
from pathlib import Path

import pytest

from holdfast_checkpoint.format.history import HistoryRecord, record_name
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.left_out import Windows, shown
from holdfast_proto.run_files import incident_log
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_RECOVERED, LOSS_TIER_NON_FINITE
from tests.chaos.conftest import Runs
from tests.chaos.test_nan_run import incidents

pytestmark = pytest.mark.system

BAD, STEPS = 5, 70
"""Number of the bad sample. Each epoch has it, at another step."""
RUN = "nan"

SCRIPT = f"""
import hashlib, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
import holdfast_hooks

class Samples(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, number):
        value = torch.randn(16, generator=torch.Generator().manual_seed(number))
        return value * (float("nan") if number == bad else 1.0)

dist.init_process_group("gloo")
torch.manual_seed(0)
bad = {BAD} if "bad" in sys.argv else -1
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Samples(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
batches = holdfast_hooks.ResumableLoader(loader)
torch.manual_seed(dist.get_rank())
state = {{"model": model, "optimizer": optimizer, "batches": batches}}
state = {{name: one for name, one in state.items() if name != "batches" or "no-position" not in sys.argv}}
with holdfast_hooks.attach(state=state) as hooks:
    for step in hooks.steps(until={STEPS}):
        try:
            batch = next(batches)
        except StopIteration:
            batch = next(batches)
        loss = model(batch).square().mean()
        loss.backward()
        hooks.enter(holdfast_hooks.Phase.OPTIMIZER)
        optimizer.step()
        optimizer.zero_grad()
        hooks.report(loss=loss)
        time.sleep(0.05)
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(hashlib.sha256(weights).hexdigest())
dist.destroy_process_group()
"""

BUDGET = 2
CONFIG = f"""
[loss]
non_finite = "roll_back"
non_finite_budget = {BUDGET}
"""


def train(runs: Runs, folder: Path, *words: str, flags: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run `holdfast run` in a folder of its own to its end, with a checkpoint every five steps."""
    folder.mkdir(exist_ok=True)
    script, config = folder / "train.py", folder / "holdfast.toml"
    script.write_text(SCRIPT)
    config.write_text(CONFIG)
    usual = ("--run", RUN, "--ranks", "2", "--snapshot-every", "5", "--checkpoint-every", "5", "--json")
    files = ("--config", str(config), "--directory", str(folder / "holdfast-runs"))
    return runs.run_script(script, (*usual, *files, *flags), str(folder / "digest"), *words)


def left_out(folder: Path, history: int) -> Windows:
    """Return what a history leaves out."""
    record = folder / "holdfast-runs" / RUN / "checkpoints" / record_name(history)
    return HistoryRecord.decode(record.read_bytes()).left_out


def test_a_run_that_is_rolled_back_has_the_weights_of_one_without_these_data(runs: Runs, tmp_path: Path) -> None:
    rolled, without, plain = tmp_path / "rolled", tmp_path / "without", tmp_path / "plain"
    done = train(runs, rolled, "bad")
    assert done.returncode == 0, done.stderr
    found = incidents(rolled)
    assert len(found) >= 2, "one in each epoch"
    for number, incident in enumerate(found):
        assert (incident.loss_tier, incident.state) == (LOSS_TIER_NON_FINITE, INCIDENT_STATE_RECOVERED)
        windows = left_out(rolled, history=2 + number)
        story = " ".join(action.what for action in incident.actions)
        assert f"without the data of steps {shown(windows)}" in story
    ((first, steps),) = left_out(rolled, history=2)
    assert first + steps == found[0].verdict.step + BUDGET + 1, "up to the loss that exceeded the budget"
    assert json.loads(done.stdout.strip().splitlines()[-1])["newest_step"] == STEPS - 1
    reference = train(runs, without, "bad", flags=("--leave-out", shown(windows)))
    assert reference.returncode == 0, reference.stderr
    assert not incident_log(without / "holdfast-runs" / RUN, RUN).exists(), "it never sees the bad sample"
    assert train(runs, plain).returncode == 0
    digests = [(folder / "digest").read_text() for folder in (rolled, without, plain)]
    assert digests[0] == digests[1]
    assert digests[1] != digests[2], "what is left out matters"


def test_a_script_that_cannot_leave_data_out_is_refused_at_its_start(runs: Runs, tmp_path: Path) -> None:
    refused = train(runs, tmp_path / "refused", "no-position")
    assert refused.returncode == ExitCode.CONFIGURATION
    assert 'the run has the policy "roll_back", and no object in `state` can leave data out' in refused.stderr
    assert not (tmp_path / "refused" / "digest").exists()
