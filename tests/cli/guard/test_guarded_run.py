"""A real guard next to a real run."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.coroutines import PATIENCE_S
from tests.support.foreign_checkpoints import TinyTraining, save_huggingface

pytestmark = pytest.mark.system

FINDING = "guard: checkpoint-20: BAD: stale: its model weights are byte-identical to those of checkpoint-10"


def test_findings_are_among_the_lines_of_a_run_and_prometheus_finds_the_guard(tmp_path: Path) -> None:
    checkpoints, training = tmp_path / "checkpoints", TinyTraining()
    for step in (10, 20):
        save_huggingface(checkpoints, step, training)
    for path in checkpoints.rglob("*"):
        os.utime(path, (1e9, 1e9))  # quiet for long
    may_end, lines = tmp_path / "end", tmp_path / "lines"
    code = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)"
    launcher = [sys.executable, "-c", code]
    command = [sys.executable, "-m", "holdfast_cli", "observe", "--run", "r", "--directory", str(tmp_path / "runs")]
    command += ["--guard", str(checkpoints), "--no-console", "--", *launcher, str(may_end)]
    with lines.open("wb") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            targets = tmp_path / "runs" / ".prometheus" / "r.json"
            while FINDING not in lines.read_text() or '"guard"' not in targets.read_text():
                assert process.poll() is None and time.monotonic() < deadline, lines.read_text()
                time.sleep(0.05)
            found = {each["labels"]["component"]: each["targets"][0] for each in json.loads(targets.read_text())}
            with urllib.request.urlopen(f"http://{found['guard']}/metrics") as answer:
                text = answer.read().decode()
            may_end.touch()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert f'holdfast_guard_newest_is_good{{directory="{checkpoints}"}} 0.0' in text
    assert lines.read_text().count(FINDING) == 1
    assert '"outcome": "bad"' in (tmp_path / "runs" / "r" / "logs" / "guard.log").read_text()
