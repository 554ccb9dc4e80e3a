"""A loop with Accelerate, with real ranks: a hung and killed run ends as one without Holdfast does, bit by bit."""

from pathlib import Path

import pytest

from tests.support.framework_runs import expect_the_same, finish, hung_and_killed, run_alone, started
from tests.support.programs import framework

pytestmark = [pytest.mark.frameworks, pytest.mark.system]
framework("accelerate")

JOB = "accelerate_job.py"


@pytest.mark.parametrize(
    ("flags", "step"),
    [pytest.param((), 11, marks=pytest.mark.gate), (("--accumulate", "3"), 4)],
    ids=["plain", "accumulate"],
)
def test_a_hung_and_killed_loop_ends_as_one_that_knows_nothing_of_holdfast(
    tmp_path: Path, flags: tuple[str, ...], step: int
) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    run_alone(JOB, alone, "--plain", *flags)
    with started(tmp_path, "killed", JOB, killed, *flags) as local:
        hung_and_killed(local, step, hangs="--accumulate" not in flags)
        resumed = finish(local, tmp_path, "killed").resumed_step
    assert resumed >= step - 1  # from a snapshot in memory; from the seed, a run would end the same
    expect_the_same(alone, killed)
