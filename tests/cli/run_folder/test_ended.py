"""What is left of a run says nothing that was true only while it ran."""

from pathlib import Path

import pytest

from holdfast_cli.control import has_ended
from holdfast_cli.run_folder.ended import as_left, load_incidents
from holdfast_daemon.incidents.incident_folder import story_text
from holdfast_proto.run_files import incident_log
from holdfast_proto.v1.common_pb2 import PHASE_UNSPECIFIED
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_FAILED,
    INCIDENT_STATE_NOTED,
    INCIDENT_STATE_OPEN,
    INCIDENT_STATE_RECOVERED,
    INCIDENT_STATE_STANDSTILL,
    LIFE_EXITED,
    RUN_PHASE_FINISHED,
    Incident,
    IncidentState,
    RankExit,
)
from tests.cli.conftest import run_record
from tests.support.statuses import healthy, killed, with_incident


def test_a_stopped_run_has_no_rank_no_snapshot_and_no_open_incident() -> None:
    running = with_incident(killed(3))
    running.newest_step = 43  # seen after the ranks were
    left = as_left(running, observed=False)
    assert has_ended(left)
    assert left.newest_snapshot == -1
    assert left.newest_checkpoint == 39
    assert {rank.life for rank in left.ranks} == {LIFE_EXITED}
    assert [(rank.step, rank.phase) for rank in left.ranks[:3]] == [(43, PHASE_UNSPECIFIED)] * 3
    assert [rank.HasField("exit") for rank in left.ranks] == [False, False, False, True]
    assert left.newest_incident.state == INCIDENT_STATE_FAILED


def test_the_end_that_a_run_had_stays() -> None:
    status = healthy()
    status.phase, status.outcome = RUN_PHASE_FINISHED, "finished"
    for rank in status.ranks:
        rank.life = LIFE_EXITED
        rank.exit.CopyFrom(RankExit(code=0))
    left = as_left(status, observed=False)
    assert (left.phase, left.outcome) == (RUN_PHASE_FINISHED, "finished")
    assert left.ranks == status.ranks
    assert not left.HasField("newest_incident")


def test_ranks_of_another_launcher_are_left_as_they_were() -> None:
    assert as_left(healthy(), observed=True) == healthy()


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        (INCIDENT_STATE_OPEN, INCIDENT_STATE_FAILED),
        (INCIDENT_STATE_STANDSTILL, INCIDENT_STATE_NOTED),
        (INCIDENT_STATE_RECOVERED, INCIDENT_STATE_RECOVERED),
    ],
)
def test_no_incident_of_an_ended_run_is_open(tmp_path: Path, logged: "IncidentState", shown: "IncidentState") -> None:
    incident = Incident(id="0001-dead-rank", detected_unix_s=2.0, state=logged)
    incident_log(tmp_path, "run").write_text(story_text(incident, indent=None) + "\n")
    assert [each.state for each in load_incidents(run_record(tmp_path))] == [shown]
