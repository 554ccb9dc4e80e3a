"""Hugging Face's Trainer and TRL's, with real ranks: a killed run ends as an undisturbed one does, bit by bit."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.framework_runs import at_step, expect_named, expect_the_same, finish, run_alone, started
from tests.support.local_runs import wait_for

pytestmark = [pytest.mark.frameworks, pytest.mark.system]
pytest.importorskip("transformers", reason="needs transformers: run `make test-frameworks`")

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
        (("--accumulate", "3", "--evaluate"), 4),  # the second of three steps of the second epoch, after an evaluation
        (("--sft",), 11),
    ],
    ids=["plain", "accumulate-evaluate", "sft"],
)
def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path: Path, flags: tuple[str, ...], step: int) -> None:
    if "--sft" in flags:
        pytest.importorskip("trl", reason="needs trl: run `make test-frameworks`")
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    run_alone(JOB, alone, *flags)
    with started(tmp_path, "killed", JOB, killed, *flags) as local:
        status = at_step(local, step)
        os.kill(status.ranks[1].pid, signal.SIGKILL)
        wait_for(lambda: local.status().generation > status.generation, "the next generation")
        resumed = finish(local, tmp_path, "killed").resumed_step
    assert resumed >= step - 1  # from a snapshot in memory; from the seed, a run would end the same
    expect_the_same(alone, killed)
    assert log_of(killed) == log_of(alone)
    assert rest_of_state(killed) == rest_of_state(alone)


def test_a_stopped_rank_is_named_and_the_run_continues_with_the_right_batches(tmp_path: Path) -> None:
    alone, hung = tmp_path / "alone", tmp_path / "hung"
    run_alone(JOB, alone)
    with started(tmp_path, "hung", JOB, hung) as local:
        status = at_step(local, 5)
        os.kill(status.ranks[1].pid, signal.SIGSTOP)
        expect_named(local.control, 1)
        finish(local, tmp_path, "hung")
    expect_the_same(alone, hung)
