"""Reads what is left of a run whose daemon is gone."""

from collections.abc import Iterable
from pathlib import Path

from google.protobuf.message import DecodeError

from holdfast_cli.control import has_ended
from holdfast_cli.run_folder.record import RunRecord
from holdfast_core.naming import STOPPED_BY_OPERATOR
from holdfast_core.reading.attention import explains_the_end
from holdfast_daemon.incidents.archive import incidents_in_log, state_at_end
from holdfast_daemon.incidents.incident_folder import STORY, StoryError, parse_story
from holdfast_proto.message_json import enum_name
from holdfast_proto.run_files import incidents
from holdfast_proto.v1.common_pb2 import PHASE_UNSPECIFIED
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import (
    LIFE_EXITED,
    RUN_PHASE_FAILED,
    Incident,
    RunPhase,
)

CUT_SHORT = "cut short"
"""Outcome of a run whose supervisor was killed."""
_STATUS = "last-status.pb"


def save_last_status(run_directory: Path, status: RunStatus) -> None:
    """Keep the last status of a run that the daemon reported."""
    (run_directory / _STATUS).write_bytes(status.SerializeToString())


def take_last_status(run_directory: Path) -> RunStatus | None:
    """Remove and return what an earlier start of the run has left: it says nothing about the next one."""
    status = load_last_status(run_directory)
    (run_directory / _STATUS).unlink(missing_ok=True)
    return status


def as_left(status: RunStatus, *, observed: bool) -> RunStatus:
    """Return the last status of a run as it is true when nothing of the run is left.

    ``observed``: its ranks belong to another launcher, and may still run.
    """
    left = RunStatus()
    left.CopyFrom(status)
    if observed:
        return left
    if not has_ended(left):
        left.phase, left.outcome = RUN_PHASE_FAILED, STOPPED_BY_OPERATOR
    left.newest_snapshot = -1  # snapshots were in memory
    left.ClearField("newest_replica")
    for rank in left.ranks:
        if rank.life != LIFE_EXITED:
            rank.life, rank.pid, rank.process_state, rank.stalled_s = LIFE_EXITED, 0, "", 0.0
            # Where it was when it was ended is not known: it trained on after it was last looked at.
            rank.step, rank.phase = max(rank.step, left.newest_step), PHASE_UNSPECIFIED
    if left.HasField("newest_incident"):
        left.newest_incident.state = state_at_end(left.newest_incident)
    left.ClearField("urgent_incident")
    if explains_the_end(left.newest_incident, left.phase):
        left.urgent_incident.CopyFrom(left.newest_incident)
    return left


def load_last_status(run_directory: Path) -> RunStatus | None:
    """Return the last status that the daemon reported; None if it has left none, or a damaged one."""
    try:
        return RunStatus.FromString((run_directory / _STATUS).read_bytes())
    except (FileNotFoundError, DecodeError):
        return None


def outcome_of(status: RunStatus | None) -> str:
    """Return in words how a run ended. ``status``: the last one; None if the daemon never reported."""
    if status is None:
        return "stopped before it began"
    if not has_ended(status):
        return "stopped"
    return status.outcome or enum_name(RunPhase, status.phase)


def load_incidents(record: RunRecord) -> list[Incident]:
    """Return the newest version of every incident of a run that has ended, oldest first."""
    found = incidents_in_log(Path(record.directory), record.run, record.created_unix_s)
    for incident in found:
        if not record.observed:
            incident.state = state_at_end(incident)
    return found


def load_earlier_incidents(run_directory: Path, run: str, present: Iterable[Incident]) -> list[Incident]:
    """Return the incidents that earlier starts of a run left in their folders, oldest first.

    Numbers begin anew with each start, so that the folder's name is the id of such an incident. Damaged ones are left
    out.
    """
    known = {incident.detected_unix_s for incident in present}
    found = []
    for story in incidents(run_directory, run).glob(f"*/{STORY}"):
        try:
            incident = parse_story(story.read_bytes())
        except (OSError, StoryError):
            continue
        if incident.detected_unix_s not in known:
            incident.id = story.parent.name
            found.append(incident)
    return sorted(found, key=lambda incident: incident.detected_unix_s)
