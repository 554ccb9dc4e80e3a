"""An incident and an incident log of a run that an earlier version watched."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast_cli.main import app
from tests.cli.conftest import run_record

BEFORE = Path(__file__).parents[2] / "data" / "before"
RUN = "before"
MESSAGE = "rank 1 is stopped in forward_backward of step 44, at train (train.py:63)"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs, in which the earlier version's run is as it was left."""
    directory = tmp_path / RUN
    shutil.copytree(BEFORE, directory)
    run_record(directory, run=RUN, outcome="finished").save()
    return tmp_path


def incidents(runs: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["incidents", *arguments, "--directory", str(runs)], env={"COLUMNS": "200"})


def test_the_log_gives_the_newest_version_of_the_incident(runs: Path) -> None:
    (found,) = json.loads(incidents(runs, "--json").stdout)
    assert (found["id"], found["state"], found["source"]) == ("0001-hung-collective", "recovered", "memory")
    assert (found["verdict"]["kind"], found["verdict"]["culprits"]) == ("hung_collective", [1])


def test_the_story_is_shown_with_the_evidence_of_both_ranks(runs: Path) -> None:
    result = incidents(runs, "show", "0001")
    assert result.exit_code == 0, result.output
    assert MESSAGE in result.stdout and "generation 2 starts from memory after step 39" in result.stdout
    assert "stop was injected into rank 1 in step 44" in result.stdout


def test_without_the_log_the_folder_is_found(runs: Path) -> None:
    (runs / RUN / f"incidents-{RUN}.jsonl").unlink()
    assert MESSAGE in incidents(runs, "--all").stdout
