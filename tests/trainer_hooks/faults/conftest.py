"""Fixtures with ranks that are harmed: see victims.py."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from holdfast_hooks.faults import Fault


class Ranks:
    """The processes of one scenario, from their start to their end."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path, request: dict[str, Any]) -> None:
        assert process.stdin is not None
        self._process = process
        self._folder = folder
        process.stdin.write(json.dumps({"folder": str(folder), **request}) + "\n")
        process.stdin.flush()
        self.pids: list[int] = self._answer()

    def wait(self) -> list[int]:
        """Return the exit codes, as in Popen.returncode."""
        return self._answer()  # type: ignore[no-any-return]

    def said(self, rank: int) -> list[dict[str, Any]]:
        """Return what a rank has reported so far, oldest first."""
        result = self._folder / f"result-{rank}"
        return [json.loads(line) for line in result.read_text().splitlines()] if result.exists() else []

    def log(self, rank: int) -> str:
        return (self._folder / f"log-{rank}").read_text()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class Victims:
    """A process that starts ranks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def play(self, scenario: str, fault: Fault, *, ranks: int = 2, **options: Any) -> Ranks:
        folder = tempfile.TemporaryDirectory(prefix="hf-")
        self._folders.append(folder)
        request = {"scenario": scenario, "fault": asdict(fault), "ranks": ranks, **options}
        return Ranks(self._process, Path(folder.name), request)


@pytest.fixture(scope="package")
def victims() -> Iterator[Victims]:
    script = str(Path(__file__).with_name("victims.py"))
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Victims(process)
        assert process.stdin is not None
        process.stdin.close()
