"""The measurements of `make gpu` can be rehearsed on the CPU, so that a machine with a GPU finds them working."""

import subprocess
import sys

import pytest

from benchmarks.gpu.outcome import Outcome
from benchmarks.gpu.record import ROOT
from benchmarks.gpu.run_part import read_outcome

LIMIT_S = 200.0


def rehearse(name: str) -> Outcome:
    # Without a GPU even where there is one: figures are for `make gpu` to take.
    script = f"import benchmarks.gpu.measure as it; it.print_outcome(it.outcome_of({name!r}, has_gpu=False))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    outcome = read_outcome(done.stdout)
    assert outcome is not None, done.stdout + done.stderr
    return outcome


@pytest.mark.parametrize("name", ["deferred_numbers", "run_ahead"])
def test_a_measurement_can_be_rehearsed(name: str) -> None:
    assert rehearse(name) == Outcome("skipped", "torch sees no GPU; rehearsed on the CPU")


@pytest.mark.system
@pytest.mark.parametrize("name", ["recorder", "gpu_memory", "checkpoint_stall", "stopped_rank", "training_speed"])
def test_a_measurement_with_processes_can_be_rehearsed(name: str) -> None:
    assert rehearse(name) == Outcome("skipped", "torch sees no GPU; rehearsed on the CPU")
