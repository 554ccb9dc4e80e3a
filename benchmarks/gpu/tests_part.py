"""Runs the tests of a part and prints its outcome: ``python -m benchmarks.gpu.tests_part MARKS LIMIT_S``."""

import sys
from pathlib import Path
from typing import Protocol

import pytest

from benchmarks.gpu.outcome import Outcome
from benchmarks.gpu.run_part import print_outcome

_FOLDER = Path(__file__).resolve().parents[2] / "tests" / "gpu"
_TEST_LIMIT_S = 150


class _Report(Protocol):
    """The part of pytest's report that is used here."""

    nodeid: str
    when: str
    outcome: str
    longrepr: object


class Results:
    """A plugin of pytest that keeps the result of each test."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: _Report) -> None:
        """Keep the worst result of set-up, test and tear-down."""
        name = report.nodeid.removeprefix("tests/gpu/")
        if report.outcome == "skipped":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.tests[name] = f"skipped: {str(reason).removeprefix('Skipped: ')}"
        elif report.outcome == "failed":
            self.tests[name] = "failed"
        elif report.when == "call":
            self.tests.setdefault(name, "passed")


def outcome_of(tests: dict[str, str], code: int) -> Outcome:
    """Return what the results of tests, and pytest's exit code, amount to."""
    failed = [name for name, result in tests.items() if result == "failed"]
    if failed:
        return Outcome("failed", f"{len(failed)} of {len(tests)} tests failed: {', '.join(failed)}", tests=tests)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) or not tests:
        return Outcome("failed", f"pytest ended with {code} after {len(tests)} tests", tests=tests)
    if all(result.startswith("skipped") for result in tests.values()):
        return Outcome("skipped", "every test was skipped", tests=tests)
    return Outcome("passed", tests=tests)


def main() -> int:
    """Run the tests that the command line selects."""
    marks, limit_s = sys.argv[1:]
    results = Results()
    limit = min(_TEST_LIMIT_S, int(limit_s) // 2)
    code = pytest.main([str(_FOLDER), "-m", marks, "-n", "0", "-rs", "--timeout", str(limit)], plugins=[results])
    outcome = outcome_of(results.tests, code)
    print_outcome(outcome)
    return int(outcome.state == "failed")


if __name__ == "__main__":
    sys.exit(main())
