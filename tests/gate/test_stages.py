"""A gate runs every stage, whatever fails, and tries a system test once more."""

import json
from pathlib import Path
from typing import Any

import pytest

import tests.gate.__main__ as gate
from tests.gate import affected

PASSES_LATER = """
import pathlib, pytest

@pytest.mark.system
def test_of_a_busy_machine():
    seen = pathlib.Path("seen")
    there = seen.exists()
    seen.touch()
    assert there

def test_fast(): assert {fast}
"""


HANGS = """
import pathlib, signal, time
import pytest

def hang_once(name):
    seen = pathlib.Path(name)
    if not seen.exists():
        seen.touch()
        time.sleep(600)

def test_that_hears_no_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    hang_once("deaf")

@pytest.fixture
def stuck():
    yield
    hang_once("later")

def test_that_hangs_twice(stuck): hang_once("first")

def test_fast(): pass
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(affected, "report", lambda: ["nothing left out"])
    monkeypatch.setattr(gate, "VENV", str(affected.ROOT / ".venv"))


def of_tests(tmp_path: Path, *, fast: bool) -> gate.Stage:
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "test_a.py").write_text(PASSES_LATER.format(fast=fast))
    (folder / "conftest.py").write_text((affected.ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {affected.ROOT}\nmarkers =\n  system:\n")
    return gate.tests("tests", "some", venv=gate.VENV, limit_s=60)


def carried_out(*lanes: list[gate.Stage]) -> tuple[int, Any]:
    return gate.carry_out(*lanes), json.loads((gate.FOLDER / "results.json").read_text())


def test_a_flaky_test_is_reported_with_both_logs_and_fails_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = carried_out([of_tests(tmp_path, fast=True)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert document["flaky"] == ["some/test_a.py::test_of_a_busy_machine"]
    assert "FLAKY some/test_a.py::test_of_a_busy_machine" in printed
    assert "assert there" in printed
    assert "1 passed" in (gate.FOLDER / "tests-again.log").read_text()
    assert printed.endswith("2 passed, 0 failed, 0 skipped\n")


def test_all_stages_run_and_all_failures_are_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lint = gate.Stage("lint", ("sh", "-c", "echo badly written; exit 2"), 60)
    late = gate.Stage("late", ("sleep", "600"), 0.2)
    absent = gate.Stage("absent", ("./no-such-program",), 60)
    code, document = carried_out([of_tests(tmp_path, fast=False)], [lint, late, absent])
    printed = capsys.readouterr().out
    assert code == 1
    assert "FAILED some/test_a.py::test_fast" in printed
    assert "badly written" in printed
    assert "late: ended after 0.2 s, its limit" in printed
    assert "late failed" in printed
    assert document["green"] is False
    assert printed.endswith("1 passed, 4 failed, 0 skipped\n")
    codes = {name: stage["code"] for name, stage in document["stages"].items()}
    assert codes == {"tests": 1, "lint": 2, "late": -9, "absent": 127, "tests-again": 0}


def test_a_stage_that_the_gate_cannot_run_or_read_has_failed_and_its_lane_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = '<testsuites><testcase name="a"><properties><property name="cpu_s" value="1,5"/></properties></testcase>'
    writes = ("sh", "-c", f"echo '{damaged}</testsuites>' >build/gate/damaged.xml")
    unreadable = gate.Stage("damaged", writes, 60, venv=gate.VENV)
    unwritable = gate.Stage("no/such/folder", ("true",), 60)
    code, document = carried_out([unreadable, unwritable, gate.Stage("last", ("true",), 60)])
    codes = {name: stage["code"] for name, stage in document["stages"].items()}
    assert (code, codes) == (1, {"damaged": 70, "no/such/folder": 70, "last": 0})
    assert "failed to run it or to read its results" in capsys.readouterr().out


def test_tests_that_their_timeouts_cannot_end_are_named_and_tried_again_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((affected.ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {affected.ROOT}\ntimeout = 2\n")
    (tmp_path / "test_a.py").write_text(HANGS)
    stage = gate.tests("hangs", "--numprocesses", "1", "test_a.py", venv=gate.VENV, limit_s=100)
    code, document = carried_out([stage])
    assert code == 0
    assert sorted(document["flaky"]) == ["test_a.py::test_that_hangs_twice", "test_a.py::test_that_hears_no_signal"]
    assert sorted(test["outcome"] for test in document["tests"]) == ["failed", "failed", "passed"]
    log = stage.log.read_text()
    assert "in test_that_hears_no_signal" in log
    assert "in stuck" in log


def test_after_an_interrupt_no_stage_starts_any_more(tmp_path: Path) -> None:
    gate.FOLDER.mkdir(parents=True)
    with gate.Runner() as runner:
        pass
    stage = gate.Stage("late", ("touch", "started"), 60)
    assert runner.run(stage).code == 143
    assert not (tmp_path / "started").exists()
