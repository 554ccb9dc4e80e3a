"""The examples with frameworks run as their heads say, and show the verdict that their page promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.first_verdict import first_verdict
from tests.support.framework_runs import PATIENCE_S
from tests.support.programs import framework

pytestmark = [pytest.mark.frameworks, pytest.mark.system]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def needs(package: str) -> None:
    framework(package)


@pytest.mark.parametrize(
    ("package", "script", "arguments", "steps"),
    [
        ("transformers", "huggingface.py", "12", 12),
        ("accelerate", "accelerate_loop.py", "1", 32),
        ("lightning", "lightning_trainer.py", "1", 64),
        ("deepspeed", "deepspeed_engine.py", "12 checkpoints", 12),
        ("trl", "trl_sft.py", "12", 12),
    ],
)
def test_an_example_runs_and_holdfast_sees_its_steps(
    tmp_path: Path, package: str, script: str, arguments: str, steps: int
) -> None:
    needs(package)
    holdfast = [sys.executable, "-m", "holdfast_cli", "run", "--ranks", "2", "--run", "example"]
    done = subprocess.run(
        [*holdfast, "--directory", str(tmp_path), "--", sys.executable, str(EXAMPLES / script), *arguments.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"finished: {steps} steps" in done.stdout + done.stderr


def test_a_stopped_rank_of_an_example_is_named(tmp_path: Path) -> None:
    needs("transformers")
    assert "rank 1 is stopped in " in first_verdict(tmp_path, "huggingface.py", "100000")
