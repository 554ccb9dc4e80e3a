"""``holdfast profile`` on real runs: the files, what is refused, and a run that is none the worse for it."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import PATIENCE_S, Runs, finish, until_step
from tests.chaos.test_observe import ENDLESS, SCRIPTS, TORCHRUN, observed
from tests.support.local_runs import wait_for

pytestmark = pytest.mark.system


def profiling(runs: Runs, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "holdfast_cli", "profile", *arguments, "--directory", str(runs.folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]") -> tuple[int | None, str, str]:
    out, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, errors


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def test_a_profile_holds_whole_steps_and_changes_nothing_of_the_training(runs: Runs, undisturbed: Path) -> None:
    name = "profiled"
    with runs.run(name) as local:
        until_step(local, 2)
        code, out, errors = ended(profiling(runs, "--rank", "1", "--steps", "2", "--json", "--run", name))
        assert (code, errors) == (0, "")
        answer = json.loads(out)
        assert (answer["rank"], answer["last_step"] - answer["first_step"]) == (1, 1)
        [path] = map(Path, answer["files"])
        assert path.is_relative_to(runs.folder / name / "profiles")
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert [one.name for one in path.parent.iterdir()] == [path.name]  # no partial file
        names = [event.get("name") for event in events(path)]
        steps = [f"ProfilerStep#{step}" for step in range(answer["first_step"], answer["last_step"] + 1)]
        assert {each for each in names if each and each.startswith("ProfilerStep")} == set(steps)
        assert {"aten::mm", "[memory]"} <= set(names)

        code, out, errors = ended(profiling(runs, "--rank", "9", "--run", name))
        assert (code, out, errors.count("\n")) == (1, "", 1)
        assert "rank 9: no such rank is alive: name one of 0, 1, 2, 3" in errors
        finish(local, undisturbed, runs, name)
    code, _, errors = ended(profiling(runs, "--rank", "1", "--run", name))
    assert (code, errors.count("\n")) == (1, 1)
    assert "has ended" in errors


def test_a_profile_of_an_observed_rank_works_and_one_that_hangs_or_dies_is_reported(runs: Runs) -> None:
    name = "profiled-ddp"
    with observed(runs, name, *TORCHRUN, str(SCRIPTS / "ddp.py"), ENDLESS) as watched:
        pids = watched.pids_at_step(3)
        code, out, errors = ended(profiling(runs, "--rank", "1", "--run", name))
        assert (code, errors) == (0, "")
        assert "perfetto" in out
        [line] = [line.strip() for line in out.splitlines() if line.strip().endswith(".json.gz")]
        assert events(Path(line))

        os.kill(pids[0], signal.SIGSTOP)
        waiting = profiling(runs, "--rank", "1", "--timeout", "120", "--run", name)
        profiles = runs.folder / name / "profiles"
        wait_for(lambda: len(list(profiles.iterdir())) == 2, "the second profile's folder")
        code, _, errors = ended(profiling(runs, "--rank", "1", "--run", name))
        assert (code, errors.count("\n")) == (1, 1)
        assert "another profile of this rank is under way" in errors

        code, _, errors = ended(profiling(runs, "--rank", "0", "--timeout", "2", "--run", name))
        assert (code, errors.count("\n")) == (1, 1)
        assert "no step of rank 0 has ended within" in errors
        assert "`holdfast stacks --rank 0`" in errors

        os.kill(pids[1], signal.SIGKILL)
        code, _, errors = ended(waiting)
        assert (code, errors.count("\n")) == (1, 1)
        assert "rank 1 has ended before its profile was complete" in errors
        os.kill(pids[0], signal.SIGKILL)
        watched.end()
