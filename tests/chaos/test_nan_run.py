"""A real run whose weights turn to NaN: by default it trains on and says so at its end; one option stops it."""

import json
import subprocess
from pathlib import Path

import pytest

from holdfast_cli.checkpoints.location import usable_steps
from holdfast_daemon.incidents.incident_folder import parse_story
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.run_files import incident_log
from holdfast_proto.v1.store_pb2 import LOSS_TIER_NON_FINITE, Incident
from tests.chaos.conftest import Runs

pytestmark = pytest.mark.system

NAN_STEP, STEPS = 22, 70
BUDGET = 10
RARE = 20
"""Steps between two losses that a run reports rarely: several checkpoints are taken in between."""
RUN = "nan"

SCRIPT = f"""
import sys, time
import torch
import holdfast_hooks

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with holdfast_hooks.attach(state={{"model": model, "optimizer": optimizer}}) as hooks:
    for step in hooks.steps(until=int(sys.argv[1])):
        if step == {NAN_STEP} and "nan" in sys.argv:
            with torch.no_grad():
                model.weight.fill_(float("nan"))
        inputs = torch.randn(16, 8)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if "rare" not in sys.argv or step % {RARE} == 0:
            hooks.report(loss=loss)
        time.sleep(0.1)
"""


def train(runs: Runs, folder: Path, *words: str, flags: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run `holdfast run` to its end, with a checkpoint every four steps."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    usual = ("--run", RUN, "--ranks", "1", "--snapshot-every", "2", "--checkpoint-every", "4", "--keep", "5")
    return runs.run_script(script, (*usual, *flags), *words)


def incidents(folder: Path) -> list[Incident]:
    """Return the newest version of each incident, oldest first."""
    lines = incident_log(folder / "holdfast-runs" / RUN, RUN).read_text().splitlines()
    return list({story.id: story for story in map(parse_story, lines)}.values())


def committed(folder: Path) -> list[int]:
    return usable_steps(str(folder / "holdfast-runs" / RUN / "checkpoints"), RUN)


def test_by_default_it_trains_on_is_notified_of_and_its_end_is_honest(runs: Runs, tmp_path: Path) -> None:
    done = train(runs, tmp_path, str(STEPS), "nan")
    assert done.returncode == ExitCode.BAD_LOSS, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert f"{RUN} finished: {STEPS} steps" in last
    assert (
        f"the loss was not finite from step {NAN_STEP} to the end: the last finite loss was at step {NAN_STEP - 1}"
        in last
    )
    (incident,) = incidents(tmp_path)
    assert (incident.loss_tier, incident.notify) == (LOSS_TIER_NON_FINITE, True)
    before = [step for step in committed(tmp_path) if step < NAN_STEP - 1]
    assert max(before) >= NAN_STEP - 12, "one from shortly before is kept, in addition to the newest five"


def test_a_stop_is_not_answered_with_a_restart_and_the_good_checkpoint_can_be_used(runs: Runs, tmp_path: Path) -> None:
    done = train(runs, tmp_path, "100000", "nan", flags=("--on-nan", "stop"))
    assert done.returncode == ExitCode.BAD_LOSS, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    step = NAN_STEP + BUDGET
    assert f'stopped at step {step} because of [loss] non_finite = "stop"' in last
    steps = committed(tmp_path)
    good = max(one for one in steps if one < NAN_STEP - 1)
    assert f"start again with --continue-from {good}, or a newer checkpoint from before step {NAN_STEP - 1}" in last
    assert max(steps) <= step + 4, "nothing of the bad state is written at the stop"
    assert "generation 2" not in done.stdout
    (incident,) = incidents(tmp_path)
    assert incident.notify
    refused = train(runs, tmp_path, str(STEPS))
    assert refused.returncode == ExitCode.CONFIGURATION
    assert f"start it with --continue-from {good}, or with --from-scratch" in refused.stderr
    assert committed(tmp_path) == steps
    again = train(runs, tmp_path, str(STEPS), flags=("--json", "--continue-from", str(good)))
    assert again.returncode == 0, again.stderr
    status = json.loads(again.stdout.strip().splitlines()[-1])
    assert (status["resumed_step"], status["newest_step"]) == (good, STEPS - 1)
    assert "nonfinite_since" not in status
    later = train(runs, tmp_path, str(STEPS + 10))
    assert later.returncode == 0, "the line of training that it has begun is good, and needs no option"


def test_a_loss_that_is_reported_rarely_leaves_a_good_checkpoint(runs: Runs, tmp_path: Path) -> None:
    done = train(runs, tmp_path, "100000", "nan", "rare", flags=("--on-nan", "stop", "--keep", "2"))
    assert done.returncode == ExitCode.BAD_LOSS, done.stderr
    finite = NAN_STEP // RARE * RARE
    good = [step for step in committed(tmp_path) if step < finite]
    assert good and max(good) >= finite - 4, "the newest from before the newest finite loss outlives newer ones"
    assert f"start again with --continue-from {max(good)}" in done.stderr
    again = train(runs, tmp_path, str(STEPS), flags=("--json", "--continue-from", str(max(good))))
    assert again.returncode == 0, again.stderr
