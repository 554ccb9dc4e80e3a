"""Trainers of transformers and TRL, with real ranks: a hung and killed run ends as one without Holdfast, bit by bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.framework_runs import expect_the_same, finish, hung_and_killed, logged, run_alone, started
from tests.support.programs import framework

pytestmark = [pytest.mark.frameworks, pytest.mark.system]
framework("transformers")

JOB = "trainer_job.py"
TIMES = ("runtime", "per_second")


def log_of(out: Path) -> list[dict[str, Any]]:
    """Return the lines of a Trainer's log without those numbers that are times."""
    state = json.loads((out / "trainer_state.json").read_text())
    return [{name: value for name, value in line.items() if not name.endswith(TIMES)} for line in state["log_history"]]


def rest_of_state(out: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((out / "trainer_state.json").read_text())
    best = Path(state.pop("best_model_checkpoint") or "none").name
    return {name: value for name, value in state.items() if name != "log_history"} | {"best": best}


@pytest.mark.parametrize(
    ("flags", "step"),
    [
        ((), 11),  # the fourth of eight steps of the second epoch
        # the second of three steps of the second epoch, after an evaluation
        pytest.param(("--accumulate", "3", "--evaluate"), 4, marks=pytest.mark.soak),
        pytest.param(("--sft",), 11, marks=pytest.mark.gate),  # TRL, whose trainer is a Trainer
    ],
    ids=["plain", "accumulate-evaluate", "sft"],
)
def test_a_hung_and_killed_run_ends_as_one_without_holdfast(tmp_path: Path, flags: tuple[str, ...], step: int) -> None:
    if "--sft" in flags:
        framework("trl")
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    run_alone(JOB, alone, "--no-line", *flags)
    with started(tmp_path, "killed", JOB, killed, *flags) as local:
        hung_and_killed(local, step, hangs="--accumulate" not in flags)
        ended = finish(local, tmp_path, "killed")
    assert ended.resumed_step >= step - 1  # from a snapshot in memory; from the seed, a run would end the same
    expect_the_same(alone, killed)
    assert log_of(killed) == log_of(alone)
    newest = {name: value for line in log_of(killed) for name, value in line.items() if name != "step"}
    assert {name: value for name, value in logged(ended).items() if not name.endswith(TIMES)} == newest
    assert "train_loss" in newest
    assert ("mean_token_accuracy" in newest) == ("--sft" in flags)
    assert rest_of_state(killed) == rest_of_state(alone)
