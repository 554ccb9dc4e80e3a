"""A program with a limit: what it says is used, and a failure always has a reason."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.evidence import brief_command
from holdfast_agent.evidence.brief_command import MOST_TIMES, CommandFailedError, output_of, stretched
from tests.support.coroutines import wait_until


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that shows the load of the node, on which nothing runs."""
    path = tmp_path / "loadavg"
    path.write_text("0.00 0.00 0.00 0/90 1000\n")
    monkeypatch.setattr(brief_command, "_LOAD", path)
    return path


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("0.00 0.00 0.00 1/90 1000", 1.0),
        ("6.00 2.00 1.00 1/90 1000", 3.0),
        ("0.00 0.00 0.00 5/90 1000", 2.5),  # the average lags behind
        ("99.0 99.0 99.0 99/200 1000", MOST_TIMES),
        ("no load at all", 1.0),
    ],
)
def test_a_limit_is_longer_while_processes_share_the_cores(load: Path, text: str, times: float) -> None:
    load.write_text(text)
    assert stretched(1.5) == 1.5 * times


def test_without_a_known_load_a_limit_is_what_it_is(load: Path) -> None:
    load.unlink()
    assert stretched(1.5) == 1.5


async def test_a_program_that_hangs_is_killed_and_the_limit_is_named(load: Path) -> None:
    load.write_text("6.00 2.00 1.00 1/90 1000")
    with pytest.raises(CommandFailedError, match=r"^sleep did not answer within 0.3 s$"):
        await output_of("/bin/sleep", ["600"], 0.1)


@pytest.mark.parametrize(("words", "says"), [("print('said')", "said\n"), ("raise SystemExit(3)", "")])
async def test_a_program_that_ended_just_before_its_limit_was_in_time(
    monkeypatch: pytest.MonkeyPatch, words: str, says: str
) -> None:
    """A busy agent learns of both at one moment, and there is no process left to kill."""
    create = asyncio.create_subprocess_exec

    async def create_and_end(*arguments: str, **others: Any) -> asyncio.subprocess.Process:
        process = await create(*arguments, **others)
        wait_until(lambda: not Path(f"/proc/{process.pid}").exists(), "the end of the program")
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_and_end)
    if says:
        assert await output_of(sys.executable, ["-c", words], 0.0) == says
    else:
        with pytest.raises(CommandFailedError, match="exit code 3"):
            await output_of(sys.executable, ["-c", words], 0.0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("import sys; sys.exit('no\\nright')", "failed: no right"),
        ("raise SystemExit(3)", "failed: exit code 3, and it said nothing"),
    ],
)
async def test_a_program_that_fails_has_a_reason(words: str, reason: str) -> None:
    with pytest.raises(CommandFailedError) as caught:
        await output_of(sys.executable, ["-c", words], 60.0)
    assert " ".join(str(caught.value).split()).endswith(reason)


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandFailedError, match=r"^py-spy cannot be run: "):
        await output_of("/nowhere/py-spy", [], 60.0)
