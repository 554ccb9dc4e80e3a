"""The guard next to a run: its settings, its lines, and that it never ends the run."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.command_lines import guard_command
from holdfast_cli.local_run.component import Component, ComponentSpec
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.local_run.stack import GuardFindings
from holdfast_cli.run_folder.paths import RunPaths
from holdfast_proto.exit_codes import ExitCode


def entry(name: str, outcome: str) -> str:
    return json.dumps({"checkpoint": name, "outcome": outcome, "line": f"{name}: {outcome}"}) + "\n"


def test_findings_of_this_run_are_shown_and_good_ones_are_not(tmp_path: Path) -> None:
    log = tmp_path / "guard.log"
    log.write_text(entry("checkpoint-1", "bad"))  # by an earlier run
    findings = GuardFindings(log)
    assert findings.newest() == []
    with log.open("a") as stream:
        stream.write("holdfast: /ckpt: the guard waits for it\n[]\n" + entry("checkpoint-2", "good"))
        stream.write(entry("checkpoint-3", "bad") + entry("checkpoint-4", "incomplete")[:9])
        stream.flush()
        assert findings.newest() == ["guard: checkpoint-3: bad"]
        stream.write(entry("checkpoint-4", "incomplete")[9:])
        stream.flush()
        assert findings.newest() == ["guard: checkpoint-3: bad", "guard: checkpoint-4: incomplete"]
        stream.write("".join(entry(f"checkpoint-{number}", "bad") for number in range(5, 20)))
    assert findings.newest()[-1] == "guard: checkpoint-19: bad"
    assert len(findings.newest()) == 5


def test_a_run_without_a_guard_has_no_findings(tmp_path: Path) -> None:
    assert GuardFindings(tmp_path / "guard.log").newest() == []


@pytest.mark.parametrize(("folder", "reason"), [("s3://bucket/x", "is a URL"), (__file__, "is a file")])
def test_a_folder_that_no_guard_can_look_at_is_refused(folder: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"--guard .* {reason}"):
        LocalRunOptions(run="r", command=("true",), guard=Path(folder))


def test_a_folder_that_does_not_exist_yet_is_taken(tmp_path: Path) -> None:
    assert LocalRunOptions(run="r", command=("true",), guard=tmp_path / "later").guard == tmp_path / "later"


def test_a_folder_whose_name_begins_with_a_dash_is_no_option(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path, tmp_path, tmp_path, "local")
    assert guard_command(paths, Path("--once"))[-2:] == ["--", str(Path.cwd() / "--once")]


@pytest.mark.parametrize("is_vital", [True, False])
def test_a_guard_that_cannot_run_does_not_end_the_run(is_vital: bool, tmp_path: Path) -> None:
    command = ["sh", "-c", f"exit {ExitCode.CONFIGURATION:d}"]
    settings: dict[str, Any] = {"log": tmp_path / "log", "environment": {}, "is_final": lambda _: False}
    component = Component(ComponentSpec(name="guard", command=command, is_vital=is_vital, **settings))
    deadline = time.monotonic() + 30
    while not (component.fatal or component.restarts) and time.monotonic() < deadline:
        component.tick(time.monotonic())
        os.sched_yield()
    component.end(5.0)
    assert (bool(component.fatal), bool(component.restarts)) == (is_vital, not is_vital)
