"""Loops on Megatron Core under Holdfast: its iterations are the steps, and a stopped rank is named."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.control import ControlClient
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, VERDICT_KIND_HUNG_COLLECTIVE, Verdict
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

framework("megatron.core")

pytestmark = [pytest.mark.frameworks, pytest.mark.system]

JOB = "megatron_job.py"
ITERATIONS = 20
LAST_STAGE = 1
SKIPPED = 3


def ends(out: Path) -> list[dict[str, Any]]:
    return [json.loads((out / f"end-{rank}.json").read_text()) for rank in range(RANKS)]


def logged(out: Path, rank: int) -> dict[int, dict[str, float | None]]:
    """Return the numbers that Megatron-LM would log, by the iteration. Only ranks with the last stage have them."""
    path = out / f"numbers-{rank}"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {int(row.pop("iteration")): row for row in rows}


def has_numbers(status: RunStatus, own: dict[str, float | None] | None) -> bool:
    """Return whether the newest step has the numbers that Megatron-LM would log for it."""
    return own is not None and all(
        value is not None and status.HasField(name) and getattr(status, name) == pytest.approx(value, rel=1e-5)
        for name, value in own.items()
    )


def stop_rank_1(control: ControlClient, step: int) -> None:
    """Stop rank 1 after ``step`` until it is named. On a busy machine, a slow rank may be an incident before it."""
    pid = at_step(control, step).ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: any(is_named(one.verdict) for one in control.incidents()), "the stopped rank")
    finally:
        os.kill(pid, signal.SIGCONT)


def is_named(verdict: Verdict) -> bool:
    return list(verdict.culprits) == [1] and verdict.message.startswith("rank 1 is stopped in ")


@pytest.mark.gate
def test_observe_reports_the_last_stage_and_names_a_stopped_rank_of_a_pipeline(tmp_path: Path) -> None:
    flags = ("--first", "2", "--iterations", str(ITERATIONS))
    run_alone(JOB, tmp_path / "alone", *flags)
    out = tmp_path / "out"
    with observed(tmp_path, "watched", JOB, out, *flags) as control:

        def has_own_numbers() -> bool:
            status = control.status()
            return status.newest_step > SKIPPED and has_numbers(status, logged(out, LAST_STAGE).get(status.newest_step))

        wait_for(has_own_numbers, "the numbers of Megatron")
        expect_logged(control, "lm loss")
        assert not logged(out, 1 - LAST_STAGE)
        stop_rank_1(control, SKIPPED + 1)
        # A skipped iteration and its missing norm are no incident.
        assert {one.verdict.kind for one in control.incidents()} == {VERDICT_KIND_HUNG_COLLECTIVE}
        hurry_file(tmp_path, "watched").touch()
        wait_for(lambda: all((out / f"end-{rank}.json").exists() for rank in range(RANKS)), "the end")
    alone, watched = ends(tmp_path / "alone"), ends(out)
    assert [end["wrapped"] for end in alone] == [[]] * RANKS
    assert all({"ChainedOptimizer", "forward_backward_no_pipelining"} <= set(end["wrapped"]) for end in watched)
    assert [end["weights"] for end in watched] == [end["weights"] for end in alone]


def test_a_run_has_the_iterations_of_the_loop_with_a_distributed_optimizer(tmp_path: Path) -> None:
    out, flags = tmp_path / "out", ("--parallel", "data", "--like-lm", "--first", "6", "--iterations", "16")
    with started(tmp_path, "held", JOB, out, *flags, snapshot_every=0) as local:
        first = at_step(local, 8)
        os.kill(first.ranks[1].pid, signal.SIGSTOP)
        expect_named(local.control, 1)
        wait_for(lambda: local.status().generation > first.generation, "a restart, which begins with its checkpoint")
        status = finish(local, tmp_path, "held")
    assert status.newest_step == 15  # the loop began with iteration 6, as after a checkpoint of Megatron
    assert sorted(logged(out, 0)) == list(range(6, 16))
    assert has_numbers(status, logged(out, 0)[15]), (status, logged(out, 0)[15])


@pytest.mark.soak
def test_a_loop_that_looks_at_should_stop_ends_after_the_same_step_on_all_ranks(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with started(tmp_path, "stopped", JOB, out, "--iterations", "200", snapshot_every=0) as local:
        at_step(local, 3)
        local.control.stop_run(grace_s=60)
        status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    assert status.left_step == status.newest_step < 199
    assert max(logged(out, LAST_STAGE)) == status.left_step
    assert len(ends(out)) == RANKS


def test_auto_names_a_stopped_rank_of_a_loop_without_a_line(tmp_path: Path) -> None:
    flags = ("--no-line", "--parallel", "data")
    with observed(tmp_path, "watched", JOB, tmp_path / "out", *flags, options=("--auto",)) as control:
        stop_rank_1(control, 3)
