"""Healthy but odd runs are left alone and their twins are restarted, as benchmarks/controls.py judges it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "controls.py"


def carried_out(*arguments: str, timeout_s: float) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARK), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    print(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def assert_left_alone(result: dict[str, Any]) -> None:
    assert (result["restarts"], result["failed_runs"], result["notes_over_one"]) == (0, 0, 0)
    assert result["controls_as_wanted"] == result["controls"]


SLICE = ("evaluation unmarked, rank 0", "one of two ranks stopped for a moment")
"""A case that computes, and one with a certain sign. The others of --quick are in the soak tests, with all the rest."""


@pytest.mark.timeout(900)
def test_a_slice_of_odd_runs_is_left_alone_and_each_twin_restarted_in_time() -> None:
    only = [part for case in SLICE for part in ("--only", case)]
    result = carried_out(*only, timeout_s=880)
    assert result["controls"] == result["twins"] == len(SLICE)
    assert_left_alone(result)
    assert result["twins_in_time"] == result["twins"]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_all_odd_runs_are_left_alone_and_each_twin_restarted_in_time() -> None:
    result = carried_out(timeout_s=7100)
    assert result["controls"] >= 60
    assert_left_alone(result)
    assert result["twins_in_time"] == result["twins"] == result["controls"]


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("preset", ["fast", "default", "patient"])
def test_controls_with_the_deadlines_of_users_are_left_alone(preset: str) -> None:
    result = carried_out("--unscaled", preset, timeout_s=1100)
    assert result["controls"] == 3
    assert_left_alone(result)
