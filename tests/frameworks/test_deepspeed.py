"""A DeepSpeed engine under Holdfast: its global steps are the steps, a hung rank is named, else nothing changes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.framework_runs import (
    RANKS,
    at_step,
    expect_logged,
    expect_named,
    finish,
    observed,
    run_alone,
    started,
)
from tests.support.local_runs import wait_for
from tests.support.programs import framework

framework("deepspeed")

pytestmark = [pytest.mark.frameworks, pytest.mark.system]

JOB = "deepspeed_job.py"


def ends(out: Path) -> list[dict[str, Any]]:
    return [json.loads((out / f"end-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize(
    "flags", [pytest.param(("--stage", "0"), marks=pytest.mark.gate), ("--pipeline",)], ids=["engine", "pipeline"]
)
def test_observe_counts_global_steps_and_names_a_stopped_rank(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with observed(tmp_path, "watched", JOB, tmp_path / "out", *flags) as control:
        status = at_step(control, 10)
        assert status.loss > 0
        expect_logged(control, "Train/Samples/train_loss" if "--pipeline" in flags else "Train/Samples/lr")
        pid = status.ranks[1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            expect_named(control, 1)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_hung_run_has_the_steps_of_the_engine_and_ends_as_without_holdfast(tmp_path: Path) -> None:
    flags = ("--batches", "60")
    run_alone(JOB, tmp_path / "alone", "--no-line", *flags)
    with started(tmp_path, "held", JOB, tmp_path / "held", *flags, snapshot_every=0) as local:
        first = at_step(local, 2)
        os.kill(first.ranks[1].pid, signal.SIGSTOP)
        expect_named(local.control, 1)
        wait_for(lambda: local.status().generation > first.generation, "a restart, which begins anew")
        status = finish(local, tmp_path, "held")
    assert status.newest_step == 29  # 60 micro-batches, two to a step, counted from 0
    alone, held = ends(tmp_path / "alone"), ends(tmp_path / "held")
    assert [end["global_steps"] for end in alone + held] == [30] * 2 * RANKS
    assert [end["wrapped"] for end in alone] == [[]] * RANKS
    assert [end["wrapped"] for end in held] == [["backward", "forward", "step"]] * RANKS
    assert [end["weights"] for end in held] == [end["weights"] for end in alone]
