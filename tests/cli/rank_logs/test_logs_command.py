"""``holdfast logs`` on the folder of a run, while it runs and after it has ended."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from typer.testing import Result

from holdfast_cli.run_folder.record import RunRecord
from holdfast_proto import run_files
from holdfast_proto.v1.store_pb2 import Incident, Verdict
from tests.cli.conftest import holdfast, identity_of, run_record
from tests.support.coroutines import PATIENCE_S

RUN = "tiny"
BEGUN_UNIX_S = 1_000.0


class Logs:
    """A run's folder with the logs of its ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / RUN

    def write(self, generation: int, rank: int, text: str, unix_s: float = BEGUN_UNIX_S + 1) -> None:
        """Add to a rank's log."""
        path = run_files.rank_log(self.directory, generation, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            stream.write(text)
        os.utime(path, (unix_s, unix_s))

    def blame(self, identity: str, generation: int, *culprits: int) -> None:
        """Add an incident to the daemon's log."""
        number = int(identity.partition("-")[0])
        incident = Incident(id=identity, run=RUN, generation=generation, verdict=Verdict(culprits=culprits))
        incident.detected_unix_s = BEGUN_UNIX_S + number
        with run_files.incident_log(self.directory, RUN).open("a") as stream:
            stream.write(json.dumps(MessageToDict(incident, preserving_proto_field_name=True)) + "\n")

    def print(self, *arguments: str) -> Result:
        """Call the command."""
        return holdfast("logs", "--directory", self.folder, *arguments)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """The logs of a run of two ranks that has ended after a restart."""
    logs = Logs(tmp_path)
    for generation in (1, 2):
        for rank in (0, 1):
            logs.write(generation, rank, f"first of {generation}\nlast of {generation}\n")
    run_record(logs.directory, run=RUN, created_unix_s=BEGUN_UNIX_S, outcome="finished").save()
    return logs


@pytest.fixture
def live(logs: Logs) -> Iterator[RunRecord]:
    """The record of the same run, while a process supervises it."""
    with subprocess.Popen(["sleep", "600"]) as supervisor:
        ticks = identity_of(supervisor.pid).start_ticks
        record = run_record(logs.directory, run=RUN, created_unix_s=BEGUN_UNIX_S, pid=supervisor.pid, start_ticks=ticks)
        record.save()
        yield record
        supervisor.kill()


def test_the_newest_ranks_are_printed_each_line_with_its_rank(logs: Logs) -> None:
    expected = "[rank 0] first of 2\n[rank 0] last of 2\n[rank 1] first of 2\n[rank 1] last of 2\n"
    assert logs.print().stdout == expected


def test_one_rank_is_printed_as_it_printed(logs: Logs) -> None:
    assert logs.print("--rank", "1", "--generation", "1", "--lines", "1").stdout == "last of 1\n"
    assert logs.print("--rank", "1", "--rank", "0", "--lines", "1").stdout == "[rank 0] last of 2\n[rank 1] last of 2\n"


def test_an_unfinished_line_counts_as_one(logs: Logs) -> None:
    logs.write(2, 1, "half a li")
    assert logs.print("--rank", "1", "--lines", "2").stdout == "last of 2\nhalf a li\n"


def test_logs_that_an_earlier_start_has_left_are_not_those_of_the_newest_generation(logs: Logs) -> None:
    logs.write(7, 0, "an earlier start\n", unix_s=BEGUN_UNIX_S - 1)
    assert "first of 2" in logs.print().stdout
    assert logs.print("--generation", "7").stdout == "an earlier start\n"


def test_following_gives_each_line_its_rank_however_many_logs_exist_yet(logs: Logs) -> None:
    logs.write(3, 1, "the first to print\n")
    assert logs.print("--follow").stdout == "[rank 1] the first to print\n"
    assert logs.print("--follow", "--rank", "1").stdout == "the first to print\n"


def test_the_culprits_of_the_newest_incident_are_printed_in_its_generation(logs: Logs) -> None:
    assert "run tiny has had no incident since it was started" in logs.print("--culprit").stderr
    logs.blame("0002-dead-rank", 1, 1)
    logs.blame("0001-dead-rank", 2, 0)
    assert logs.print("--culprit").stdout == "first of 1\nlast of 1\n"
    logs.blame("0003-standstill", 2)
    assert "incident 0003-standstill names no rank" in logs.print("--culprit").stderr
    assert "leave out --rank" in logs.print("--culprit", "--rank", "1").stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--rank", "5"), "rank 5 has no log in generation 2: ranks 0, 1 have one"),
        (("--generation", "9"), "generation 9 has no log of a rank: those that have one: 1, 2"),
        (("--run", "other"), ", which has tiny: name one of its runs"),
    ],
)
def test_what_is_not_there_is_one_line_with_the_fix(logs: Logs, arguments: tuple[str, ...], expected: str) -> None:
    result = logs.print(*arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert expected in result.stderr


def test_a_run_without_a_rank_says_which_logs_there_are(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.directory.mkdir()
    run_record(logs.directory, run=RUN).save()
    assert f"see those of agent and daemon in {logs.directory / 'logs'}" in logs.print().stderr


def test_the_output_of_an_observed_run_is_the_launchers(logs: Logs) -> None:
    run_record(logs.directory, run=RUN, observed=True).save()
    result = logs.print()
    assert result.exit_code == 1
    assert "another launcher has started them: look where that launcher prints" in result.stderr


def test_following_shows_new_lines_and_new_generations_until_the_run_has_ended(logs: Logs, live: RunRecord) -> None:
    arguments = ["logs", "--directory", str(logs.folder), "--lines", "1", "--follow"]
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast_cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["[rank 0] last of 2\n", "[rank 1] last of 2\n"]
        logs.write(2, 1, "more of 2\nand its l")
        assert process.stdout.readline() == "[rank 1] more of 2\n"
        logs.write(2, 1, "ast")
        for rank in (0, 1):
            logs.write(3, rank, f"rank {rank} is back\n")
        expected = ["[rank 1] and its last\n", "[rank 0] rank 0 is back\n", "[rank 1] rank 1 is back\n"]
        assert [process.stdout.readline() for _ in range(3)] == expected
        logs.write(3, 0, "no end of line")
        replace(live, outcome="finished").save()
        rest, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, rest) == (0, "[rank 0] no end of line\n")
    assert errors == "holdfast: generation 3 of run tiny\n"


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(logs: Logs) -> None:
    for rank in (0, 1):
        logs.write(2, rank, "a long line that fills the pipe\n" * 50_000)
    command = f"{sys.executable} -m holdfast_cli logs --directory {logs.folder} | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("[rank 0] first of 2\n", "")
