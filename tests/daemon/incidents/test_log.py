import json
from pathlib import Path

import pytest

from holdfast_daemon.incidents import archive
from holdfast_daemon.incidents.archive import IncidentLog
from holdfast_proto.v1 import store_pb2 as store

INCIDENT = store.Incident(
    id="0001-hung-collective",
    run="run",
    generation=3,
    verdict=store.Verdict(kind=store.VERDICT_KIND_HUNG_COLLECTIVE, culprits=[2], message="rank 2 …\nsecond line"),
    detected_unix_s=1_700_000_000.25,
    state=store.INCIDENT_STATE_OPEN,
)


def test_every_version_is_one_line_with_the_names_of_the_contract(tmp_path: Path) -> None:
    log = IncidentLog(tmp_path, "run")
    log.append(INCIDENT)
    recovered = store.Incident()
    recovered.CopyFrom(INCIDENT)
    recovered.state = store.INCIDENT_STATE_RECOVERED
    IncidentLog(tmp_path, "run").append(recovered)  # of the next daemon
    first, second = map(json.loads, (tmp_path / "incidents-run.jsonl").read_text().splitlines())
    assert (first["id"], first["state"], first["detected_unix_s"]) == (INCIDENT.id, "open", 1_700_000_000.25)
    verdict = {"kind": "hung_collective", "culprits": [2], "message": "rank 2 …\nsecond line"}
    assert first["verdict"] | verdict == first["verdict"]
    assert (second["id"], second["state"]) == ("0001-hung-collective", "recovered")


def test_runs_have_files_of_their_own(tmp_path: Path) -> None:
    for run in ("a", "b"):
        IncidentLog(tmp_path, run).append(INCIDENT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["incidents-a.jsonl", "incidents-b.jsonl"]


def test_the_log_and_the_one_before_it_hold_the_newest_incidents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LOG_BYTES", 1000)
    log = IncidentLog(tmp_path, "run")
    for number in range(100):
        log.append(store.Incident(id=f"{number:04}", detected_unix_s=number + 1.0, run="x" * 200))
    files = list(tmp_path.iterdir())
    assert sorted(path.name for path in files) == ["incidents-run.jsonl", "incidents-run.jsonl.1"]
    assert max(path.stat().st_size for path in files) < 2000
    found = [incident.id for incident in archive.incidents_in_log(tmp_path, "run", 0.0)]
    assert found == [f"{number:04}" for number in range(100 - len(found), 100)]
    assert len(found) >= 4


def test_a_file_that_cannot_be_written_stops_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = IncidentLog(tmp_path / "none", "run")
    for _ in range(3):
        log.append(INCIDENT)
    assert log.failures_total == 3
    (message,) = caplog.messages
    assert "incidents-run.jsonl" in message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk here")
def test_a_full_disk_is_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "incidents-run.jsonl").symlink_to("/dev/full")
    log = IncidentLog(tmp_path, "run")
    for _ in range(3):
        log.append(INCIDENT)
    assert (log.attempts_total, log.failures_total, len(caplog.records)) == (3, 3, 1)
