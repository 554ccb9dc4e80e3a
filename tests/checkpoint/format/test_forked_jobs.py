import mmap
import os
import signal
import time
from pathlib import Path

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnreadable
from holdfast_checkpoint.format.forked_jobs import ForkedJobs

JOBS = 40


@pytest.fixture
def shared() -> mmap.mmap:
    """Memory that forked processes write to as well."""
    return mmap.mmap(-1, 4096)


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_every_job_is_done_once(processes: int, shared: mmap.mmap) -> None:
    def job(number: int) -> None:
        shared[number] += 1

    with ForkedJobs(job, JOBS, processes=processes) as jobs:
        jobs.finish()
    assert shared[: JOBS + 1] == bytes([1] * JOBS + [0])


def test_the_first_job_that_failed_is_reported_whatever_failed_before_it(shared: mmap.mmap) -> None:
    def job(number: int) -> None:
        if number == 5:
            while not shared[6]:
                time.sleep(0.001)
            raise CheckpointUnreadable("five")
        if number > 5:
            shared[number] = 1
            raise CheckpointUnreadable("a later one")

    with ForkedJobs(job, JOBS, processes=3) as jobs, pytest.raises(CheckpointUnreadable, match=r"^five$"):
        jobs.finish()


def test_a_process_that_is_killed_is_an_error() -> None:
    def job(number: int) -> None:
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with ForkedJobs(job, JOBS, processes=2) as jobs, pytest.raises(CheckpointError, match="killed by SIGKILL"):
        jobs.finish()


def test_an_unexpected_error_is_printed_and_ends_the_job(capfd: pytest.CaptureFixture[str]) -> None:
    def job(number: int) -> None:
        raise LookupError(f"job {number} is odd")

    with ForkedJobs(job, 1, processes=1) as jobs, pytest.raises(CheckpointError, match="exited with code 1"):
        jobs.finish()
    assert "LookupError: job 0 is odd" in capfd.readouterr().err


def test_no_process_outlives_an_error_of_the_caller(tmp_path: Path) -> None:
    def job(number: int) -> None:
        (tmp_path / str(os.getpid())).touch()
        signal.pause()

    with pytest.raises(OSError, match="elsewhere"), ForkedJobs(job, 2, processes=2):
        while len(pids := [int(path.name) for path in tmp_path.iterdir()]) < 2:
            time.sleep(0.001)
        raise OSError("elsewhere")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
