"""Runs one part in a process group of its own, with a limit, and returns its outcome whatever happens to it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from benchmarks.gpu.outcome import LINE_START, Outcome
from benchmarks.gpu.parts import Part
from benchmarks.gpu.record import ROOT

_ENDING_S = 10.0
"""Time that a part has to print its outcome after SIGTERM."""


def run_part(part: Part, log: Path) -> Outcome:
    """Run a part; return its outcome. Its output goes to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # The benchmarks import tests and packages from the root. What was imported from elsewhere is not what is reported.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_places()), "PYTHONUNBUFFERED": "1"}
    with log.open("w") as output:
        is_late, code = _run(part.command(), environment, output, part.limit_s)
    outcome = read_outcome(log.read_text(errors="replace"))
    if outcome is not None and not (code and outcome.state != "failed"):
        return outcome
    why = f"it was ended after {part.limit_s:g} s" if is_late else f"it ended with {code} and without an outcome"
    return Outcome("failed", f"{why}: see {log.relative_to(ROOT) if log.is_relative_to(ROOT) else log}")


def read_outcome(text: str) -> Outcome | None:
    """Return the last outcome in the output of a part, or None."""
    lines = [line for line in text.splitlines() if line.startswith(LINE_START)]
    try:
        return Outcome.from_json(json.loads(lines[-1].removeprefix(LINE_START))) if lines else None
    except ValueError:
        return None


def _run(command: list[str], environment: dict[str, str], output: IO[str], limit_s: float) -> tuple[bool, int]:
    process = subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
    )
    is_late = False
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        is_late = True
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_S)
    finally:
        # Ranks of the part must not hold the GPU while the next part measures it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return is_late, process.returncode


def _places() -> list[str]:
    packages = ("base", "proto", "checkpoint", "trainer_hooks", "agent", "daemon", "trainer", "cli")
    known = os.environ.get("PYTHONPATH", "")
    return [str(ROOT), *(str(ROOT / package) for package in packages), *filter(None, known.split(os.pathsep))]


def print_outcome(outcome: Outcome) -> None:
    """Print an outcome as the part's process does at its end."""
    print(LINE_START + json.dumps(outcome.to_json()), flush=True)
    sys.stdout.flush()
