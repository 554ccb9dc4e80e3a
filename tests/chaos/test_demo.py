"""The demo as a user starts it. Both faults are named, and the result is that of an undisturbed run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.conftest import Runs

pytestmark = pytest.mark.system

LONG_S = 600.0
"""Seconds for two runs of eight ranks: 90 on two cores, and three times that next to other jobs."""
STEPS = 30
"""Number of steps: a third of the demo's own. The faults and the comparison are the same."""


@pytest.mark.gate
@pytest.mark.safety
@pytest.mark.timeout(LONG_S + 60)
def test_the_demo_names_both_faults_and_ends_bit_identical(runs: Runs, tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_TEST_MARK": runs.mark, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "holdfast_cli", "demo", "--steps", str(STEPS), "--json"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LONG_S
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["ranks"], report["layout"]) == (8, {"dp": 2, "tp": 2, "pp": 2})
    assert [(fault["kind"], fault["rank"]) for fault in report["faults"]] == [("kill", 5), ("hang", 2)]
    for fault in report["faults"]:
        assert fault["named_rank"] == fault["rank"]
        assert fault["recovered_s"] > fault["detected_s"] > 0
    assert report["bit_identical"]
    assert not runs.processes()
    assert re.search(r"^console: http://127\.0\.0\.1:\d+/$", done.stderr, re.MULTILINE)
    page = tmp_path / report["report"]
    assert list(tmp_path.glob("holdfast*")) == [page]
    assert "hung collective" in page.read_text()
