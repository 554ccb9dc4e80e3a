"""The dumps that benchmarks/analyze.py writes, and what they show."""

from pathlib import Path

from benchmarks.analyze import write_dumps
from holdfast_cli.analysis.diagnosis_report import diagnose_dumps
from holdfast_cli.analysis.dump_folder import read_folder
from holdfast_core.diagnosis.devices.causes import CauseKind

RANKS, CALLS, CULPRIT = 40, 60, 11


def test_full_rings_show_who_holds_up_the_job(tmp_path: Path) -> None:
    write_dumps(tmp_path, RANKS, CALLS, CULPRIT)
    found = read_folder(tmp_path)
    assert sorted(found.dumps) == list(range(RANKS)) and found.refused == []
    assert all(len(dump.calls) == CALLS and dump.has_wrapped for dump in found.dumps.values())
    diagnosis = diagnose_dumps(found)
    assert [cause.kind for cause in diagnosis.causes] == [CauseKind.MISSING_RANK]
    assert diagnosis.culprits == (CULPRIT,)
