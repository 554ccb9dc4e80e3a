"""The verdict of a gate: which failures count, which tests are tried once more, and what has cost too much."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOST_FLAKY = 2
"""More tests than this that pass only at the second try fail the gate."""
FAST_TEST_CPU_S = 2.0
GATE_CPU_S = 1700.0
# In the log of a test that was ended: by its timeout, or with its process. The second one has no other name than this.
_TIMED_OUT = re.compile(r"Timeout \(>[\d.]+s\) from pytest-timeout")
_LOST = re.compile(r"worker '\w+' crashed while running '(.+)'")


@dataclass(frozen=True)
class Result:
    """How one test ended."""

    test: str
    outcome: str
    """``passed``, ``failed`` or ``skipped``. An error in a fixture is a failure."""
    cpu_s: float
    markers: frozenset[str]
    log: str

    @property
    def may_be_repeated(self) -> bool:
        """Return whether a failure may be the fault of a busy machine.

        A fast test depends on no other process, and a failed assertion about safety is never an accident. But where a
        test was ended, none failed: a fault that always hangs does so again.
        """
        was_ended = _TIMED_OUT.search(self.log) or _LOST.search(self.log)
        return ("system" in self.markers or was_ended is not None) and not self.is_about_safety

    @property
    def is_about_safety(self) -> bool:
        """Return whether its failure means harm. A test that has lost its process shows no markers."""
        return "safety" in self.markers


@dataclass(frozen=True)
class Verdict:
    """What a gate reports."""

    failed: tuple[Result, ...]
    flaky: tuple[Result, ...]

    @property
    def is_green(self) -> bool:
        """Return whether the change may land."""
        return not self.failed and len(self.flaky) <= MOST_FLAKY


def read_results(report: Path) -> list[Result]:
    """Read a JUnit report of pytest. A missing or damaged report has no results.

    A test has one entry for its body and may have another for an error afterwards: the worse one counts.
    """
    try:
        cases = ET.parse(report).getroot().iter("testcase")
    except (OSError, ET.ParseError):
        return []
    found: dict[str, Result] = {}
    for result in map(_result, cases):
        earlier = found.get(result.test)
        if earlier is None or earlier.outcome != "failed":
            found[result.test] = result
    return list(found.values())


def judge(results: Iterable[Result], repeated: Iterable[Result]) -> Verdict:
    """Return the verdict on all results and on those of a second try. A test that vanished there has failed."""
    passed_later = {result.test for result in repeated if result.outcome == "passed" and not result.is_about_safety}
    failed = [result for result in results if result.outcome == "failed"]
    flaky = tuple(result for result in failed if result.may_be_repeated and result.test in passed_later)
    return Verdict(tuple(result for result in failed if result not in flaky), flaky)


def expensive(results: Iterable[Result]) -> list[Result]:
    """Return the fast tests that are over their budget of CPU time, the worst first."""
    over = (result for result in results if not result.markers and result.cpu_s > FAST_TEST_CPU_S)
    return sorted(over, key=lambda result: -result.cpu_s)


def _result(case: ET.Element) -> Result:
    properties = {item.get("name", ""): item.get("value", "") for item in case.iter("property")}
    broken = case.find("failure") if case.find("failure") is not None else case.find("error")
    outcome = "failed" if broken is not None else "skipped" if case.find("skipped") is not None else "passed"
    log = "\n".join(element.text or "" for element in case if element.tag != "properties")
    lost = _LOST.search(log)
    return Result(
        test=properties.get("nodeid") or (lost[1] if lost else f"{case.get('classname')}::{case.get('name')}"),
        outcome=outcome,
        cpu_s=float(properties.get("cpu_s", 0.0)),
        markers=frozenset(properties.get("markers", "").split()),
        log=log,
    )
