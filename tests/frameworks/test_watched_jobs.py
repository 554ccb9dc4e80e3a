"""Jobs with frameworks that torchrun starts: a hung rank is named, with the line of the framework and by --auto."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.framework_runs import at_step, expect_hang_named, expect_logged, expect_named, hurry_file, observed
from tests.support.programs import framework

pytestmark = [pytest.mark.frameworks, pytest.mark.system]


JOBS = [
    ("transformers", "trainer_job.py", ("--forever",)),
    pytest.param("trl", "trainer_job.py", ("--forever", "--sft"), marks=pytest.mark.soak),  # its trainer is a Trainer
    ("accelerate", "accelerate_job.py", ()),
]
LOGGED = {"trainer_job.py": ("loss", "grad_norm", "learning_rate", "epoch"), "accelerate_job.py": ("train_loss", "lr")}


@pytest.mark.parametrize(("package", "job", "flags"), JOBS)
def test_a_rank_that_stands_still_in_its_model_is_named_with_the_line(
    tmp_path: Path, package: str, job: str, flags: tuple[str, ...]
) -> None:
    framework(package)
    with observed(tmp_path, "watched", job, tmp_path / "out", *flags) as control:
        at_step(control, 3)
        expect_logged(control, *LOGGED[job])
        expect_hang_named(control, hurry_file(tmp_path, "watched"))


@pytest.mark.parametrize(("package", "job", "flags"), [*JOBS, ("deepspeed", "deepspeed_job.py", ())])
def test_a_stopped_rank_of_a_job_without_a_line_is_named(
    tmp_path: Path, package: str, job: str, flags: tuple[str, ...]
) -> None:
    framework(package)
    with observed(tmp_path, "watched", job, tmp_path / "out", *flags, "--no-line", options=("--auto",)) as control:
        pid = at_step(control, 3).ranks[1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            expect_named(control, 1)
        finally:
            os.kill(pid, signal.SIGCONT)
