"""A real run in which a rank dies, and the report and the comparison that are made of it afterwards."""

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast_cli.control import rank_pids
from holdfast_cli.main import app
from holdfast_daemon.history.history_reader import RunHistory
from holdfast_proto import run_files
from tests.chaos.conftest import STEPS, Runs, until, until_step

pytestmark = pytest.mark.system

SMALL = ("--parallel.dp=2", "--parallel.pp=1", "--train.global_batch=4")


def test_a_run_leaves_a_report_with_its_incident(runs: Runs, tmp_path: Path) -> None:
    name = "reported"
    with runs.run(name, ranks=2, flags=SMALL) as local:
        status = until_step(local, 5)
        os.kill(rank_pids(status)[1], signal.SIGKILL)
        until(local, lambda status: status.generation == 2 and status.newest_step >= 12)
        runs.hurry(name)
        local.wait(timeout_s=120)
    history = RunHistory(run_files.history(runs.folder / name, name))
    (start,) = history.starts()
    assert {"holdfast", "python", "torch"} <= set(start.spec["versions"])
    steps = history.curve(start.instance, "loss").step
    rows = history.steps_after(start.instance, -1)
    # The rank may die after its snapshot of a step, and before its report of that step is sent. No other is missing.
    first_again = min(row.step for row in rows if row.generation == 2)
    assert [step for step in range(STEPS) if step not in steps] in ([], [first_again - 1])
    assert steps == sorted(set(steps)) and steps[-1] == STEPS - 1
    assert {row.generation for row in rows} == {1, 2}
    assert STEPS - 1 in [row.step for row in history.checkpoints(start.instance)]

    output = tmp_path / "report.html"
    arguments = ["report", name, "--directory", str(runs.folder), "--output", str(output)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    page = output.read_text()
    for expected in ("0001-dead-rank", "finished", "Gradient norm", "SIGKILL"):
        assert expected in page

    arguments = ["compare", name, str(runs.folder / name), "--directory", str(runs.folder), "--json"]
    result = CliRunner().invoke(app, [*arguments, "--fail-on", "loss +0%"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)["figures"]
    assert figures["incidents"] == {"a": 1.0, "b": 1.0, "change_ratio": 0.0}
    assert figures["steps"]["a"] == STEPS
