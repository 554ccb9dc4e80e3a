"""The last line about a run."""

from pathlib import Path

from holdfast_cli.errors import CommandError
from holdfast_cli.words import progress_line
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_RECOVERED


def closing_line(status: RunStatus, checkpoints: str) -> str:
    """Return what a finished run has come to."""
    return (
        f"{status.run} finished: {progress_line(status, None)} · restarts {status.restarts} · "
        f"incidents {status.incidents} · checkpoints in {checkpoints}"
    )


def stopped_line(status: RunStatus, checkpoints: str) -> str:
    """Return from where a run goes on that was stopped as planned.

    Raises CommandError if its last checkpoint was not committed in time.
    """
    from holdfast_cli.checkpoint_location import committed_steps

    committed = committed_steps(checkpoints)
    if status.left_step not in committed:
        newest = f"that of step {committed[-1]} is the newest" if committed else "there is none"
        raise CommandError(
            f"run {status.run} stopped after step {status.left_step}, but its checkpoint was not written: {newest}."
            " Allow more time with --preemption-grace-s"
        )
    return (
        f"{status.run} stopped after step {status.left_step}, as asked: with --run {status.run} it goes on from "
        f"its last checkpoint, in {checkpoints}"
    )


def failure_line(status: RunStatus, logs: Path) -> str:
    """Return why a run has failed and where to read on."""
    newest = status.newest_incident
    # An incident that was overcome is not what ended the run.
    message = "" if newest.state == INCIDENT_STATE_RECOVERED else newest.verdict.message
    reason = status.outcome or message or "no reason was given"
    return f"run {status.run} failed: {' '.join(reason.split()).removeprefix('holdfast: ')} (logs: {logs})"
