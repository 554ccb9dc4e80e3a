"""Follows the page on the first verdict: start an example, stop one of its ranks, read who it was."""

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from holdfast_cli.control import ControlClient
from holdfast_cli.run_folder.record import load_record
from tests.support.local_runs import wait_for

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 100.0
_NAME = "first"


def first_verdict(
    directory: Path, script: str, *arguments: str, flags: tuple[str, ...] = (), python: str = sys.executable
) -> str:
    """Run an example that takes long, have rank 1 stopped, end the run after the restart; return what was printed.

    ``python``: the one in which Holdfast is installed, and which runs the example.
    """
    log = directory / "printed.txt"
    command = ["run", *flags, "--ranks", "2", "--run", _NAME, "--allow-faults", "--directory", str(directory)]
    with log.open("w") as output:
        run = _holdfast(python, *command, "--", python, str(ROOT / "examples" / script), *arguments, output=output)
    try:
        wait_for(lambda: _newest_step(directory, run) >= 5, "step 5")
        here = ("--run", _NAME, "--directory", str(directory))
        assert _holdfast(python, "inject", "stop", "--rank", "1", *here).wait(PATIENCE_S) == 0
        wait_for(lambda: "[recovered]" in log.read_text(), "the restart")
        assert _holdfast(python, "stop", *here).wait(PATIENCE_S) == 0
        run.wait(PATIENCE_S)
    finally:
        run.terminate()
        run.wait(PATIENCE_S)
    return log.read_text()


def _holdfast(python: str, *arguments: str, output: IO[str] | int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [python, "-m", "holdfast_cli", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def _newest_step(directory: Path, run: "subprocess.Popen[bytes]") -> int:
    assert run.poll() is None, (directory / "printed.txt").read_text()
    record = load_record(directory / _NAME)
    return -1 if record is None else ControlClient(Path(record.control), record.run, timeout_s=2.0).status().newest_step
