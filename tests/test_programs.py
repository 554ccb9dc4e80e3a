"""A test that lacks a program is skipped, or fails where nothing may be skipped, as .ci/run demands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.programs import CHROMIUM, FRAMEWORKS_VARIABLE, PROGRAMS, PROGRAMS_VARIABLE, find_chromium

ROOT = Path(__file__).parents[1]
CI = ROOT / ".ci" / "run"
TESTS = """
from tests.support import programs

@programs.needs("{name}")
def test_by_mark():
    programs.program("{name}")

def test_by_path():
    programs.program("{name}", "{name}-too")

def test_by_package():
    programs.package("{name}")

def test_by_framework():
    programs.framework("{name}")

@programs.needs("sh")
def test_of_a_program_that_is_there():
    assert programs.program("{name}", "sh").endswith("/sh")
    assert programs.package("json").loads("1") == 1
"""
ABSENT = "holdfast_has_no_such_program"


def outcomes(folder: Path, **environment: str) -> tuple[dict[str, str], str]:
    """Run tests that need what no machine has; return the outcome of each, and what pytest printed."""
    (folder / "test_absent.py").write_text(TESTS.format(name=ABSENT))
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    kept = {name: value for name, value in os.environ.items() if name not in (PROGRAMS_VARIABLE, FRAMEWORKS_VARIABLE)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "-rs", "-c", "pytest.ini"]
    ended = subprocess.run(
        command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False, timeout=60
    )
    found = re.findall(r"::test_(\w+) (PASSED|SKIPPED|FAILED)", ended.stdout)
    return dict(found), ended.stdout + ended.stderr


def test_without_the_variables_a_test_is_skipped_and_says_what_to_install(tmp_path: Path) -> None:
    found, output = outcomes(tmp_path)
    assert found.pop("of_a_program_that_is_there") == "PASSED"
    assert found == dict.fromkeys(("by_mark", "by_path", "by_package", "by_framework"), "SKIPPED")
    assert f"{ABSENT} is not installed (Debian: apt-get install {ABSENT})" in output
    assert f"needs {ABSENT}: run `make test-frameworks`" in output


@pytest.mark.parametrize(
    ("variable", "failed"),
    [(PROGRAMS_VARIABLE, {"by_mark", "by_path", "by_package"}), (FRAMEWORKS_VARIABLE, {"by_framework"})],
)
def test_where_everything_is_required_a_test_fails_instead(tmp_path: Path, variable: str, failed: set[str]) -> None:
    found, output = outcomes(tmp_path, **{variable: "required"})
    assert found.pop("of_a_program_that_is_there") == "PASSED"
    assert {name for name, outcome in found.items() if outcome == "FAILED"} == failed
    assert f"({variable}=required)" in output


def test_the_local_check_installs_and_requires_every_program() -> None:
    script = CI.read_text()
    looked_for = re.search(r"^for program in (.+); do command -v", script, re.MULTILINE)
    assert looked_for is not None
    assert sorted(looked_for[1].split()) == sorted(PROGRAMS)
    for variable in (PROGRAMS_VARIABLE, "HOLDFAST_TEST_NETWORKS"):
        assert f"export {variable}=required\n" in script


def test_the_workflow_requires_them_too() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    environment = workflow["jobs"]["make"]["env"]
    assert environment[PROGRAMS_VARIABLE] == "required"
    assert "required" in environment[FRAMEWORKS_VARIABLE]


@pytest.mark.parametrize("name", CHROMIUM)
def test_chromium_is_found_by_each_of_its_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_chromium() is None
    (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / name).chmod(0o755)
    assert find_chromium() == str(tmp_path / name)


def test_no_test_looks_for_a_program_or_a_package_in_a_way_of_its_own() -> None:
    """All go through ``tests/support/programs.py``, so that nothing is skipped where nothing may be."""
    own_ways = re.compile(r"importorskip\(|shutil\.which\([^)]*\) is None|/usr/bin/chromium")
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if own_ways.search(path.read_text()) and path != Path(__file__)
    ]
    assert found == ALLOWED


ALLOWED = [
    "tests/gpu/test_trainer.py",  # runs on a lent machine, which has what it has
    "tests/trainer_hooks/restore/test_slot_restore.py",  # numpy is optional for the hooks
    "tests/trainer_hooks/state/test_encoding.py",
]
