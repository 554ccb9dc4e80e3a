import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast_cli.commands.demo import DemoOptions
from holdfast_cli.demo.demo_report import DemoReport, FaultReport, judge
from holdfast_cli.demo.faults import Injected
from holdfast_cli.errors import SettingsError
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_FAILED, INCIDENT_STATE_RECOVERED, Incident, Verdict

KILL = Injected("kill", 5, 40, 100.0)
HANG = Injected("hang", 2, 80, 200.0)


def incident(culprit: int, detected: float, recovered: float) -> Incident:
    state = INCIDENT_STATE_RECOVERED if recovered else INCIDENT_STATE_FAILED
    found = Incident(verdict=Verdict(culprits=[culprit]), lost_steps=1, state=state)
    found.detected_unix_s, found.recovered_unix_s = detected, recovered
    return found


def report(*faults: FaultReport, differences: tuple[str, ...] = ()) -> DemoReport:
    run: dict[str, Any] = {"ranks": 8, "layout": {"dp": 2, "tp": 2, "pp": 2}, "steps": 120, "final_loss": 2.5}
    return DemoReport(faults=faults, planned_faults=2, differences=differences, page=Path("page.html"), **run)


def test_faults_are_paired_with_the_first_incident_after_them() -> None:
    earlier = incident(7, 99.0, 99.5)
    found = judge([KILL, HANG], [earlier, incident(5, 100.5, 103.0), incident(2, 202.0, 206.25)])
    assert found == [FaultReport("kill", 5, 5, 0.5, 3.0, 1), FaultReport("hang", 2, 2, 2.0, 6.25, 1)]
    assert report(*found).succeeded


def test_a_fault_without_a_verdict_is_reported_as_such() -> None:
    found = judge([KILL, HANG], [incident(2, 202.0, 203.0)])
    assert found[0] == FaultReport("kill", 5, None, None, None, None)
    assert not report(*found).succeeded


def test_a_wrong_name_no_recovery_a_missing_fault_or_other_weights_are_failures() -> None:
    right = FaultReport("kill", 5, 5, 0.5, 3.0, 1)
    assert not report(right, FaultReport("hang", 2, 3, 0.5, 3.0, 1)).succeeded
    assert not report(right, *judge([HANG], [incident(2, 201.0, 0.0)])).succeeded
    assert not report(right).succeeded
    assert not report(right, right, differences=("rank 0 tensor x: values differ",)).succeeded


def test_the_report_for_scripts() -> None:
    found = judge([KILL, HANG], [incident(5, 100.123, 103.0), incident(2, 202.0, 206.25)])
    assert report(*found).to_json() == {
        "ranks": 8,
        "layout": {"dp": 2, "tp": 2, "pp": 2},
        "steps": 120,
        "faults": [
            {"kind": "kill", "rank": 5, "named_rank": 5, "detected_s": 0.12, "recovered_s": 3.0, "lost_steps": 1},
            {"kind": "hang", "rank": 2, "named_rank": 2, "detected_s": 2.0, "recovered_s": 6.25, "lost_steps": 1},
        ],
        "final_loss": 2.5,
        "bit_identical": True,
        "report": "page.html",
    }


def test_the_report_for_people() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    found = judge([KILL, HANG], [incident(5, 100.5, 103.0), incident(3, 202.0, 206.25)])
    console.print(report(*found, differences=("rank 0 tensor x: values differ",)).render())
    text = console.export_text()
    (kill,), (hang,) = ([line.split() for line in text.splitlines() if kind in line] for kind in ("kill", "hang"))
    assert (kill, hang[3]) == (["kill", "5", "5", "yes", "0.5", "3.0", "1"], "NO")
    assert "rank 0 tensor x: values differ" in text
    assert text.rstrip().endswith("for a browser: page.html")


def test_too_few_steps_for_two_faults_are_refused() -> None:
    with pytest.raises(SettingsError, match="--steps 10"):
        DemoOptions(steps=10, seed=0, keep=Path("unused"))


def test_a_report_that_could_not_be_written_is_refused_before_the_runs() -> None:
    with pytest.raises(SettingsError, match="--report /none/page"):
        DemoOptions(steps=90, seed=0, report=Path("/none/page.html"))
