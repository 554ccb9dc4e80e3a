"""Real runs that have a checkpoint and scripts that do not take it: each fails in one line, and harms nothing."""

import hashlib
import re
from pathlib import Path

import pytest

from holdfast_cli.checkpoints.location import usable_steps
from holdfast_proto.exit_codes import ExitCode
from tests.chaos.conftest import Runs

pytestmark = pytest.mark.system

RUN = "unused"
FLAGS = ("--preset", "fast", "--run", RUN, "--ranks", "1", "--snapshot-every", "1", "--checkpoint-every", "2", "--tee")
LAST = 3
"""The step of the run's checkpoint."""

SCRIPT = """
import sys
import torch
import holdfast_hooks
from holdfast_hooks import Phase

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}

def train_step(report=None):
    loss = model(torch.ones(2, 8)).sum()
    loss.backward()
    optimizer.step()
    if report is not None:
        report(loss=loss.detach())

kind = sys.argv[1]
if kind == "good":
    with holdfast_hooks.attach(state=state) as hooks:
        for _ in hooks.steps(until=int(sys.argv[2])):
            train_step(hooks.report)
elif kind == "reports":
    with holdfast_hooks.attach(state=state) as hooks:
        hooks.enter(Phase.DATA)
        for _ in range(4):
            train_step(hooks.report)
    print("reports is done")
elif kind == "closes":
    with holdfast_hooks.attach(state=state) as hooks:
        hooks.enter(Phase.EVAL)
        hooks.report(validation_loss=float(model(torch.ones(2, 8)).sum()))
    print("closes is done")
elif kind == "never":
    for _ in range(4):
        train_step()
    print("never is done")
"""


def digests(checkpoints: Path) -> dict[str, str]:
    return {
        str(path.relative_to(checkpoints)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(checkpoints.rglob("*"))
        if path.is_file() and path.name != "proven.json"
    }


def test_a_run_that_does_not_take_its_checkpoint_fails_in_one_line_and_leaves_it_as_it_is(
    runs: Runs, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    checkpoints = tmp_path / "holdfast-runs" / RUN / "checkpoints"
    first = runs.run_script(script, FLAGS, "good", str(LAST + 1))
    assert first.returncode == 0, first.stderr
    assert usable_steps(str(checkpoints), RUN)[-1] == LAST
    kept = digests(checkpoints)
    lines = {
        "never": f"no rank attached: the checkpoint of step {LAST} was not used, and nothing was saved: call "
        "holdfast_hooks.attach() before the training loop",
        "closes": f"no rank restored the checkpoint of step {LAST}, and none began a step: call hooks.restore()",
        "reports": "the run has a state to continue from, and the script reported the loss of a step without it: call "
        "hooks.restore() before the loop",
    }
    for kind, line in lines.items():
        done = runs.run_script(script, FLAGS, kind)
        assert done.returncode == ExitCode.CONFIGURATION, (kind, done.stdout, done.stderr)
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"holdfast: run {RUN} failed: {line}"), (kind, done.stderr)
        assert done.stderr.count("no rank has called") == 0
        assert "restarts 1" not in done.stdout  # it is not started again
        assert (f"{kind} is done" in done.stdout) is (kind != "reports"), done.stdout
        assert digests(checkpoints) == kept
        assert usable_steps(str(checkpoints), RUN)[-1] == LAST


def test_in_mode_observe_a_run_whose_ranks_have_all_died_ends_with_the_cause(runs: Runs, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, holdfast_hooks\n"
        "with holdfast_hooks.attach() as hooks:\n"
        "    for step in hooks.steps(until=40):\n"
        "        if step == 3:\n"
        "            raise ValueError(f'bad sample of rank {os.environ[\"RANK\"]}')\n"
    )
    done = runs.run_script(script, ("--preset", "fast", "--run", "dead", "--ranks", "2", "--mode", "observe"))
    assert done.returncode == ExitCode.FAILED, (done.stdout, done.stderr)
    last = done.stderr.splitlines()[-1]
    # Both raise it at the same time.
    assert re.match(r"holdfast: run dead failed: rank (\d) raised ValueError: bad sample of rank \1 ", last), (
        done.stderr
    )
    assert "all ranks have ended, and the mode of the run allows no restart" in last
