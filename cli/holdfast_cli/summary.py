"""The last line about a run."""

from pathlib import Path

from holdfast_cli.words import progress_line
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_RECOVERED


def closing_line(status: RunStatus, checkpoint_directory: Path) -> str:
    """Return what a finished run has come to."""
    return (
        f"{status.run} finished: {progress_line(status, None)} · restarts {status.restarts} · "
        f"incidents {status.incidents} · checkpoints in {checkpoint_directory}"
    )


def failure_line(status: RunStatus, logs: Path) -> str:
    """Return why a run has failed and where to read on."""
    newest = status.newest_incident
    # An incident that was overcome is not what ended the run.
    message = "" if newest.state == INCIDENT_STATE_RECOVERED else newest.verdict.message
    reason = message or status.outcome or "no reason was given"
    return f"run {status.run} failed: {' '.join(reason.split()).removeprefix('holdfast: ')} (logs: {logs})"
