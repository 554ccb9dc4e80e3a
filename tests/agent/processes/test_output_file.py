"""What C++ wrote as it aborted a rank of another launcher."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from holdfast_agent.processes.output_file import OutputFile

ABORT = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  64 vs 4. Received data size\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nRuntimeError: closed by peer\n'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_text(f"an older attempt\n{ABORT}")
    return path


@contextlib.contextmanager
def writing_to(stderr: "IO[bytes] | int") -> Iterator[int]:
    """Yield the pid of a process with a certain stderr."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stderr=stderr) as process:
        assert process.stdin is not None
        yield process.pid
        process.stdin.close()


@pytest.fixture
def output(log: Path) -> Iterator[OutputFile | None]:
    """The file of a process whose stderr is ``log``."""
    with log.open("ab") as stderr, writing_to(stderr) as pid:
        yield OutputFile.of(pid)


def write(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_an_abort_is_found_among_what_others_write(log: Path, output: OutputFile | None) -> None:
    assert output is not None
    assert output.abort_message() == "", "the older attempt's is not its own"
    write(log, f"step 20\n{ABORT}{TRACEBACK * 20}")
    assert output.abort_message() == ABORT.rstrip()
    write(log, TRACEBACK * 1000)
    assert output.abort_message() == "", "too far from the end"


def test_of_two_aborts_nobody_knows_whose_is_which(log: Path, output: OutputFile | None) -> None:
    assert output is not None
    write(log, ABORT + ABORT)
    assert output.abort_message() == ""


def test_a_file_that_is_gone_has_no_words(log: Path, output: OutputFile | None) -> None:
    assert output is not None
    log.unlink()
    assert output.abort_message() == ""


@pytest.mark.parametrize("stderr", [subprocess.PIPE, subprocess.DEVNULL])
def test_a_pipe_and_a_device_are_left_to_the_launcher(stderr: int) -> None:
    with writing_to(stderr) as pid:
        assert OutputFile.of(pid) is None
    assert OutputFile.of(pid) is None


def test_a_file_is_found_under_its_new_name(log: Path) -> None:
    kept = log.with_suffix(".1")
    with log.open("ab") as stderr, writing_to(stderr) as pid:
        log.rename(kept)
        log.write_text(ABORT)
        assert OutputFile.of(pid) == OutputFile(kept, kept.stat().st_size)
