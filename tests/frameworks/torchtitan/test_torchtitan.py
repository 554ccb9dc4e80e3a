"""torchtitan's Trainer under Holdfast: its numbers are reported, a stopped rank is named, its own checkpoints count."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED
from tests.support.framework_runs import (
    PATIENCE_S,
    RANKS,
    at_step,
    expect_logged,
    expect_named,
    finish,
    hurry_file,
    observed,
    run_alone,
    started,
)
from tests.support.local_runs import wait_for
from tests.support.programs import framework

framework("torchtitan")

pytestmark = [pytest.mark.frameworks, pytest.mark.system]

JOB = "torchtitan_job.py"
STEPS = 10
EVERY = 3
"""Steps from one checkpoint of torchtitan to the next."""


def ends(out: Path) -> list[dict[str, Any]]:
    return [json.loads((out / f"end-{rank}.json").read_text()) for rank in range(RANKS)]


def logged(out: Path, rank: int) -> list[dict[str, float]]:
    """Return what torchtitan has logged, in its order."""
    path = out / f"numbers-{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the end of a run without Holdfast, which has the same entry."""
    out = tmp_path_factory.mktemp("alone")
    run_alone(JOB, out)
    assert [(end["step"], end["wrapped"], end["built_by"]) for end in ends(out)] == [
        (STEPS, [], "as_torchtitan")
    ] * RANKS
    return ends(out)


@pytest.mark.gate
def test_observe_reports_what_torchtitan_logs_and_names_a_stopped_rank(
    tmp_path: Path, alone: list[dict[str, Any]]
) -> None:
    out = tmp_path / "out"
    with observed(tmp_path, "watched", JOB, out) as control:

        def has_the_same_numbers() -> bool:
            status = control.status()
            own = {row["step"]: row for row in logged(out, 0)}.get(status.newest_step + 1)  # Holdfast counts from 0
            return own is not None and all(
                status.HasField(name) and getattr(status, name) == pytest.approx(own[name], rel=1e-5)
                for name in ("loss", "grad_norm", "learning_rate")
            )

        wait_for(has_the_same_numbers, "the numbers of torchtitan")
        expect_logged(control, "loss_metrics/global_avg_loss", "grad_norm", "throughput(tps)")
        pid = at_step(control, 1).ranks[1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            expect_named(control, 1)
        finally:
            os.kill(pid, signal.SIGCONT)
        hurry_file(tmp_path, "watched").touch()
        wait_for(lambda: (out / "end-0.json").exists() and (out / "end-1.json").exists(), "the end")
    assert [(end["step"], end["wrapped"]) for end in ends(out)] == [(STEPS, [])] * RANKS
    assert [end["weights"] for end in ends(out)] == [end["weights"] for end in alone]


@pytest.mark.soak
def test_a_killed_run_continues_from_the_newest_checkpoint_of_torchtitan(
    tmp_path: Path, alone: list[dict[str, Any]]
) -> None:
    out = tmp_path / "out"
    with started(tmp_path, "killed", JOB, out, "--checkpoint.enable") as local:
        pid = at_step(local, EVERY + 1).ranks[1].pid
        os.kill(pid, signal.SIGKILL)
        status = finish(local, tmp_path, "killed")
    assert (status.newest_step, status.generation) == (STEPS - 1, 2)
    steps = [row["step"] for row in logged(out, 0)]
    (again,) = [at for at in range(1, len(steps)) if steps[at] != steps[at - 1] + 1]
    assert (steps[again] - 1) % EVERY == 0, steps  # the step after the one of the checkpoint
    assert steps[again] <= steps[again - 1], steps
    assert [end["weights"] for end in ends(out)] == [end["weights"] for end in alone]


@pytest.mark.soak
def test_a_hung_run_begins_again_and_a_stopped_one_ends_after_the_same_step_on_all_ranks(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with started(tmp_path, "stopped", JOB, out, "--training.steps", "200") as local:
        first = at_step(local, 1)
        os.kill(first.ranks[1].pid, signal.SIGSTOP)
        expect_named(local.control, 1)
        wait_for(lambda: local.status().generation > first.generation, "a restart")
        at_step(local, 3)
        local.control.stop_run(grace_s=60)
        status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    assert status.left_step == status.newest_step < 199
    assert [end["step"] for end in ends(out)] == [status.left_step + 1] * RANKS
