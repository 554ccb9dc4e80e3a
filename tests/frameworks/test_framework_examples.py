"""The examples with frameworks run as their heads say, and show the verdict that their page promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.first_verdict import first_verdict
from tests.support.framework_runs import PATIENCE_S

pytestmark = [pytest.mark.frameworks, pytest.mark.system]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def needs(package: str) -> None:
    pytest.importorskip(package, reason=f"needs {package}: run `make test-frameworks`")


@pytest.mark.parametrize(
    ("package", "script", "argument", "steps"),
    [
        ("transformers", "huggingface.py", "12", 12),
        ("accelerate", "accelerate_loop.py", "1", 32),
        ("lightning", "lightning_trainer.py", "1", 64),
    ],
)
def test_an_example_runs_and_holdfast_sees_its_steps(
    tmp_path: Path, package: str, script: str, argument: str, steps: int
) -> None:
    needs(package)
    holdfast = [sys.executable, "-m", "holdfast_cli", "run", "--ranks", "2", "--run", "example"]
    done = subprocess.run(
        [*holdfast, "--directory", str(tmp_path), "--", sys.executable, str(EXAMPLES / script), argument],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"finished: {steps} steps" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("package", "script", "argument"),
    [
        ("transformers", "huggingface.py", "100000"),
        ("accelerate", "accelerate_loop.py", "100000"),
        ("lightning", "lightning_trainer.py", "100000"),
    ],
)
def test_a_stopped_rank_of_an_example_is_named(tmp_path: Path, package: str, script: str, argument: str) -> None:
    needs(package)
    assert "rank 1 is stopped in " in first_verdict(tmp_path, script, argument)
