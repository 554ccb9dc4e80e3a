"""``holdfast observe`` on runs that stock launchers start: it names the culprit and touches nothing."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from holdfast_cli.control import ControlClient, ControlError
from holdfast_cli.run_folder.ended import load_incidents
from holdfast_cli.run_folder.record import load_record
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import VERDICT_KIND_HUNG_COLLECTIVE, Incident
from tests.chaos.conftest import PATIENCE_S, Runs
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system

SCRIPTS = Path(__file__).parents[2] / "examples"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
ENDLESS = "1000000"

PLAIN_RANK = """
import time, holdfast_hooks
with holdfast_hooks.attach() as hooks:
    for step in hooks.steps(until=20):
        time.sleep(0.01)
"""


@dataclass(frozen=True)
class Observed:
    """A ``holdfast observe`` that runs."""

    process: "subprocess.Popen[str]"
    directory: Path
    log: Path

    @property
    def control(self) -> ControlClient:
        record = load_record(self.directory)
        if record is None:
            raise ControlError("the run is not recorded yet", unreachable=True)
        return ControlClient(Path(record.control), record.run)

    def until(self, condition: Callable[[RunStatus], object]) -> RunStatus:
        def look() -> RunStatus | None:
            assert self.process.poll() is None, self.log.read_text()
            status = self.control.status()
            return status if condition(status) else None

        return wait_for(look, "its status")

    def pids_at_step(self, step: int) -> dict[int, int]:
        status = self.until(lambda status: len(status.ranks) == 2 and status.newest_step >= step)
        return {rank.rank: rank.pid for rank in status.ranks}

    def first_incident(self) -> Incident:
        return wait_for(self.control.incidents, "an incident")[0]

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the log."""
        return self.process.wait(PATIENCE_S), self.log.read_text()


@contextlib.contextmanager
def observed(runs: Runs, name: str, *command: str, options: Sequence[str] = ()) -> Iterator[Observed]:
    """Observe a command, with further options. At the end, nothing of it may be left."""
    log = runs.folder / f"{name}.log"
    flags = ["--run", name, "--preset", "fast", "--directory", str(runs.folder), *options]
    arguments = ["observe", *flags, "--", *command]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast_cli", *arguments],
            env={**os.environ, "HOLDFAST_TEST_MARK": runs.mark},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield Observed(process, runs.folder / name, log)
        assert not runs.processes()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def incidents_in(log: str) -> set[str]:
    return set(re.findall(r"^incident (\S+):", log, re.MULTILINE))


def assert_names_the_stopped(incident: Incident, rank: int) -> None:
    assert incident.verdict.kind == VERDICT_KIND_HUNG_COLLECTIVE
    assert list(incident.verdict.culprits) == [rank]
    assert incident.verdict.message.startswith(f"rank {rank} is stopped in ")
    assert [(edge.waiter, edge.awaited) for edge in incident.verdict.waits] == [(1 - rank, rank)]


@pytest.mark.safety
@pytest.mark.slice
def test_a_stopped_and_later_a_killed_rank_of_a_ddp_script_are_named_and_the_launchers_exit_code_is_ours(
    runs: Runs,
) -> None:
    with observed(runs, "ddp", *TORCHRUN, str(SCRIPTS / "ddp.py"), ENDLESS) as watched:
        pids = watched.pids_at_step(3)
        os.kill(pids[0], signal.SIGSTOP)
        assert_names_the_stopped(watched.first_incident(), 0)
        reached = watched.control.status()
        assert {rank.rank: rank.pid for rank in reached.ranks} == pids  # both were left alone
        os.kill(pids[0], signal.SIGCONT)
        watched.until(lambda status: status.newest_step > reached.newest_step + 1)
        os.kill(pids[1], signal.SIGKILL)
        code, log = watched.end()
    assert code == 1  # torchrun's
    # Either torchrun or we reap the rank, and only the first of the two learns how it ended.
    named = re.findall(r"^incident \S+: (rank \d+) (?:was killed|ended|raised|lost)", log, re.MULTILINE)
    assert named == ["rank 1"]


def test_a_stopped_rank_of_an_fsdp2_script_is_named_and_the_run_finishes_once_it_continues(runs: Runs) -> None:
    with observed(runs, "fsdp", *TORCHRUN, str(SCRIPTS / "fsdp2.py"), "80") as watched:
        pids = watched.pids_at_step(3)
        os.kill(pids[1], signal.SIGSTOP)
        assert_names_the_stopped(watched.first_incident(), 1)
        os.kill(pids[1], signal.SIGCONT)
        code, log = watched.end()
    assert code == 0
    assert "fsdp finished, generation 1" in log
    assert set(re.findall(r"(rank \d+) is stopped in", log)) == {"rank 1"}


def test_ranks_that_find_the_printed_line_in_their_environment_are_watched_to_a_clean_end(runs: Runs) -> None:
    with observed(runs, "serve") as watched:
        assert watched.process.stdout is not None
        export, assignment = shlex.split(watched.process.stdout.readline())
        variable, _, value = assignment.partition("=")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PLAIN_RANK],
                env={
                    **os.environ,
                    variable: value,
                    "OMPI_COMM_WORLD_RANK": str(rank),
                    "OMPI_COMM_WORLD_SIZE": "2",
                    "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                },
            )
            for rank in range(2)
        ]
        assert [rank.wait(PATIENCE_S) for rank in ranks] == [0, 0]
        code, log = watched.end()
    assert (export, variable) == ("export", "HOLDFAST_CONTEXT")
    assert code == 0
    assert "serve finished, generation 1" in log
    assert incidents_in(log) == set()


def test_a_run_has_its_console_where_it_says_and_its_operator_ends_it_by_a_signal_which_is_no_incident(
    runs: Runs,
) -> None:
    with observed(runs, "interrupted", sys.executable, "-c", PLAIN_RANK.replace("20", ENDLESS)) as watched:
        watched.until(lambda status: status.newest_step >= 3)
        printed = wait_for(
            lambda: re.search(r"^console: (http://127\.0\.0\.1:\d+)", watched.log.read_text(), re.MULTILINE),
            "the address of the console",
        )
        with urlopen(printed[1], timeout=30) as page:
            assert "<title>" in page.read().decode()
        with pytest.raises(HTTPError, match="401"):  # it serves this run, to those who have its token
            urlopen(f"{printed[1]}/api/runs/interrupted", timeout=30)
        watched.process.send_signal(signal.SIGINT)
        code, log = watched.end()
    assert code == 128 + signal.SIGINT
    assert "interrupted finished, generation 1: stopped by an operator" in log
    record = load_record(watched.directory)
    assert record is not None
    assert record.outcome == "stopped by an operator"
    assert load_incidents(record) == []
