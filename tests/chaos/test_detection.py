"""Verdicts compared with the injected faults, as benchmarks/detection.py judges them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "detection.py"


def scored(*arguments: str, timeout_s: float) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARK), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout_s)
    print(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_sample_of_faults_gets_the_right_verdicts() -> None:
    result = scored("--quick", timeout_s=400)
    assert result["cases"] == 8
    assert (result["kind"], result["rank_top1"]) == (1.0, 1.0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_hundreds_of_faults_get_the_right_verdicts_and_healthy_runs_are_left_alone() -> None:
    result = scored(timeout_s=3500)
    assert result["cases"] >= 300
    assert result["healthy_controls"] >= 30
    assert result["rank_top1"] >= 0.99
    assert result["kind"] >= 0.95
    assert result["false_verdicts"] == 0
