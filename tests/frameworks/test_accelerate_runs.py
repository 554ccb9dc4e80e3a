"""A loop with Accelerate, with real ranks: a killed run ends as an undisturbed one does, bit by bit."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.framework_runs import at_step, expect_named, expect_the_same, finish, run_alone, started
from tests.support.local_runs import wait_for

pytestmark = [pytest.mark.frameworks, pytest.mark.system]
pytest.importorskip("accelerate", reason="needs accelerate: run `make test-frameworks`")

JOB = "accelerate_job.py"


@pytest.mark.parametrize(("flags", "step"), [((), 11), (("--accumulate", "3"), 4)], ids=["plain", "accumulate"])
def test_a_killed_loop_ends_as_an_undisturbed_one(tmp_path: Path, flags: tuple[str, ...], step: int) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    run_alone(JOB, alone, *flags)
    with started(tmp_path, "killed", JOB, killed, *flags) as local:
        status = at_step(local, step)
        os.kill(status.ranks[1].pid, signal.SIGKILL)
        wait_for(lambda: local.status().generation > status.generation, "the next generation")
        resumed = finish(local, tmp_path, "killed").resumed_step
    assert resumed >= step - 1  # from a snapshot in memory; from the seed, a run would end the same
    expect_the_same(alone, killed)


def test_a_stopped_rank_is_named_and_the_loop_continues_with_the_right_batches(tmp_path: Path) -> None:
    alone, hung = tmp_path / "alone", tmp_path / "hung"
    run_alone(JOB, alone)
    with started(tmp_path, "hung", JOB, hung) as local:
        os.kill(at_step(local, 5).ranks[1].pid, signal.SIGSTOP)
        expect_named(local.control, 1)
        finish(local, tmp_path, "hung")
    expect_the_same(alone, hung)
