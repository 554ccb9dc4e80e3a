"""What comes from outside of a process is bounded and typed: damaged files lead to the reader's own errors alone.

A failure names the seed and the number of the input: `python -m tests.fuzz MODULE --only NAME --seed SEED` repeats it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("checkpoint_sources", "evidence_sources", "command_sources", "torch_sources")
INPUTS = int(os.environ.get("HOLDFAST_FUZZ_INPUTS", "250"))
"""Damaged files for each reader."""
SOAK_INPUTS = 20_000


def examined(module: str, inputs: int, seed: int) -> list[dict[str, Any]]:
    """Return what the readers of a module did with damaged files."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", module, "--inputs", str(inputs), "--seed", str(seed)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def check(module: str, inputs: int, seed: int) -> None:
    print(f"seed {seed}")
    found = examined(module, inputs, seed)
    assert len(found) > 3
    assert {each["name"]: each["foreign"] for each in found if each["foreign"]} == {}
    assert all(each["inputs"] >= inputs for each in found)


@pytest.mark.parametrize("module", MODULES)
def test_damaged_files_lead_to_the_readers_own_errors(module: str) -> None:
    check(module, INPUTS, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("module", MODULES)
def test_many_damaged_files_do_too(module: str) -> None:
    check(module, max(INPUTS, SOAK_INPUTS), seed=int.from_bytes(os.urandom(4)))
