"""Jobs with frameworks that torchrun starts: a stopped rank is named, with the line of the framework and by --auto."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.framework_runs import at_step, expect_named, observed

pytestmark = [pytest.mark.frameworks, pytest.mark.system]


@pytest.mark.parametrize("options", [(), ("--auto",)], ids=["line", "auto"])
@pytest.mark.parametrize(("package", "job"), [("transformers", "trainer_job.py"), ("accelerate", "accelerate_job.py")])
def test_a_stopped_rank_of_an_observed_job_is_named(
    tmp_path: Path, package: str, job: str, options: tuple[str, ...]
) -> None:
    pytest.importorskip(package, reason=f"needs {package}: run `make test-frameworks`")
    flags = ("--no-line",) if options else ()
    with observed(tmp_path, "watched", job, tmp_path / "out", *flags, options=options) as control:
        pid = at_step(control, 3).ranks[1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            expect_named(control, 1)
        finally:
            os.kill(pid, signal.SIGCONT)
