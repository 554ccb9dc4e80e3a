"""What a gate makes of the reports of pytest."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gate.results import MOST_FLAKY, Result, expensive, judge, read_results

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_passes(): ...

@pytest.mark.system
@pytest.mark.parametrize("number", [1, 2])
def test_fails(number): assert number == 2

@pytest.mark.safety
@pytest.mark.system
def test_harms(): assert False

@pytest.fixture
def later():
    yield
    assert False

def test_cleans_up_badly(later): ...

@pytest.mark.skip
def test_is_skipped(): ...
"""


def result(test: str, outcome: str = "failed", *, markers: str = "system", cpu_s: float = 0.0) -> Result:
    return Result(test, outcome, cpu_s, frozenset(markers.split()), "log")


def test_a_report_has_the_outcome_the_markers_and_the_cost_of_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_all.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {ROOT}\naddopts = --import-mode=importlib\nmarkers =\n  system:\n  safety:\n"
    )
    command = [sys.executable, "-m", "pytest", "-c", "pytest.ini", "-p", "no:cacheprovider", "--junitxml", "r.xml"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    found = {result.test.partition("::")[2]: result for result in read_results(tmp_path / "r.xml")}
    assert {test: result.outcome for test, result in found.items()} == {
        "test_passes": "passed",
        "test_fails[1]": "failed",
        "test_fails[2]": "passed",
        "test_harms": "failed",
        "test_cleans_up_badly": "failed",
        "test_is_skipped": "skipped",
    }
    assert [test for test, result in found.items() if result.may_be_repeated] == ["test_fails[1]", "test_fails[2]"]
    assert "assert 1 == 2" in found["test_fails[1]"].log
    assert found["test_passes"].cpu_s >= 0.0


@pytest.mark.parametrize("text", [None, "", "<testsuites><testsuite>"])
def test_a_report_that_is_missing_or_was_cut_off_has_no_results(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "r.xml").write_text(text)
    assert read_results(tmp_path / "r.xml") == []


def test_a_system_test_that_passes_at_the_second_try_is_flaky() -> None:
    verdict = judge([result("a"), result("b", "passed")], [result("a", "passed")])
    assert ([flaky.test for flaky in verdict.flaky], verdict.failed, verdict.is_green) == (["a"], (), True)


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_one_that_does_not_pass_then_has_failed(outcome: str) -> None:
    verdict = judge([result("a")], [result("a", outcome)])
    assert ([failed.test for failed in verdict.failed], verdict.is_green) == (["a"], False)


def test_one_that_vanishes_then_has_failed() -> None:
    assert not judge([result("a")], []).is_green


@pytest.mark.parametrize("markers", ["", "system safety", "safety"])
def test_fast_tests_and_safety_are_never_tried_again(markers: str) -> None:
    assert not judge([result("a", markers=markers)], [result("a", "passed")]).is_green


@pytest.mark.parametrize(
    "log",
    [
        "E  Failed: Timeout (>240.0s) from pytest-timeout.",
        "worker 'gw1' crashed while running 'tests/test_a.py::a'",
    ],
)
def test_one_that_was_ended_is_tried_again_unless_it_is_about_safety(log: str) -> None:
    ended = Result("a", "failed", 0.0, frozenset(), log)
    assert judge([ended], [result("a", "passed", markers="")]).flaky == (ended,)
    assert not judge([ended], [result("a", "passed", markers="system safety")]).is_green


def test_too_many_flaky_tests_are_a_failure() -> None:
    names = [str(number) for number in range(MOST_FLAKY + 1)]
    again = [result(name, "passed") for name in names]
    assert judge(map(result, names[1:]), again).is_green
    assert not judge(map(result, names), again).is_green


def test_fast_tests_over_their_budget_are_named_and_the_worst_comes_first() -> None:
    results = [
        result("much", "passed", markers="", cpu_s=2.5),
        result("little", "passed", markers="", cpu_s=1.9),
        result("most", "passed", markers="", cpu_s=9.0),
        result("real processes", "passed", cpu_s=9.0),
    ]
    assert [over.test for over in expensive(results)] == ["most", "much"]
