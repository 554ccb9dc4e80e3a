"""What is left of a run says nothing that was true only while it ran."""

from pathlib import Path

import pytest

from holdfast_cli.control import has_ended
from holdfast_cli.run_folder.ended import as_left, load_incidents
from holdfast_daemon.incidents.incident_folder import story_text
from holdfast_proto.run_files import incident_log
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_UNSPECIFIED
from tests.cli.conftest import run_record
from tests.support.statuses import healthy, killed, with_incident


def test_a_stopped_run_has_no_rank_no_snapshot_and_no_open_incident() -> None:
    running = with_incident(killed(3))
    running.newest_step = 43  # seen after the ranks were
    running.newest_replica = 39
    left = as_left(running, observed=False)
    assert has_ended(left)
    assert (left.newest_snapshot, left.newest_checkpoint) == (-1, 39)
    assert not left.HasField("newest_replica")
    assert {rank.life for rank in left.ranks} == {store.LIFE_EXITED}
    assert [(rank.step, rank.phase) for rank in left.ranks[:3]] == [(43, PHASE_UNSPECIFIED)] * 3
    assert [rank.HasField("exit") for rank in left.ranks] == [False, False, False, True]
    assert left.newest_incident.state == store.INCIDENT_STATE_FAILED


def test_the_end_that_a_run_had_stays() -> None:
    status = healthy()
    status.phase, status.outcome = store.RUN_PHASE_FINISHED, "finished"
    for rank in status.ranks:
        rank.life = store.LIFE_EXITED
        rank.exit.CopyFrom(store.RankExit(code=0))
    left = as_left(status, observed=False)
    assert (left.phase, left.outcome) == (store.RUN_PHASE_FINISHED, "finished")
    assert left.ranks == status.ranks
    assert not left.HasField("newest_incident")


def test_ranks_of_another_launcher_are_left_as_they_were() -> None:
    assert as_left(healthy(), observed=True) == healthy()


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        (store.INCIDENT_STATE_OPEN, store.INCIDENT_STATE_FAILED),
        (store.INCIDENT_STATE_STANDSTILL, store.INCIDENT_STATE_NOTED),
        (store.INCIDENT_STATE_RECOVERED, store.INCIDENT_STATE_RECOVERED),
    ],
)
def test_no_incident_of_an_ended_run_is_open(
    tmp_path: Path, logged: "store.IncidentState", shown: "store.IncidentState"
) -> None:
    incident = store.Incident(id="0001-dead-rank", detected_unix_s=2.0, state=logged)
    incident_log(tmp_path, "run").write_text(story_text(incident, indent=None) + "\n")
    assert [each.state for each in load_incidents(run_record(tmp_path))] == [shown]
