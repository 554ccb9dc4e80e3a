"""The last line about a run."""

from pathlib import Path

from holdfast_cli.checkpoints.location import usable_steps
from holdfast_cli.errors import (
    BadLossError,
    CheckpointsUnavailableError,
    CommandError,
    LastCheckpointError,
    SettingsError,
)
from holdfast_cli.views.phrases import measures, step_phrase
from holdfast_core.texts.incident_lines import number_of
from holdfast_proto.v1.common_pb2 import PHASE_IDLE
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import INCIDENT_STATE_RECOVERED, VERDICT_KIND_BAD_CONFIGURATION, RankExit


def closing_line(status: RunStatus, checkpoints: str) -> str:
    """Return the result of a finished run.

    Raises LastCheckpointError if its last checkpoint failed, or if its last steps are in none.
    """
    if status.HasField("failed_checkpoint"):
        usable = usable_steps(checkpoints, status.run)
        if status.failed_checkpoint > max(usable, default=-1):
            raise LastCheckpointError(
                f"run {status.run} finished, but the checkpoint of step {status.failed_checkpoint} was not written:"
                f" {_newest(usable, checkpoints)}. `holdfast incidents` says why"
            )
    kept, lost = _kept(status, checkpoints)
    how = f"{status.run} {_how_it_ended(status)}"
    counts = [f"restarts {status.restarts}", f"incidents {status.incidents}"]
    line = " · ".join([how, *measures(status), *counts, kept])
    if lost:
        raise LastCheckpointError(f"{line}; {lost}")
    return line


def _how_it_ended(status: RunStatus) -> str:
    """Return what the script did, as far as it is known: it may have left its loop early, or found nothing to do."""
    done = status.newest_step + 1
    # A process that ends itself at once reports nothing any more: what its loop was to do is known from before.
    until = max((rank.exit.steps_until for rank in status.ranks), default=0) or status.planned_steps
    has_resumed = status.HasField("resumed_step")
    if has_resumed and status.newest_step <= status.resumed_step:
        if 0 < until <= done and not status.restarts:
            return f"was finished already: all {number_of(until, 'step')} had been done by an earlier start"
        return f"finished: the script made no step after step {status.resumed_step}, from which it resumed"
    if not 0 <= done < until:
        return f"finished: {step_phrase(status, None)}"
    left_in = sorted({rank.exit.step for rank in status.ranks if rank.HasField("exit")})
    if left_in[0] < left_in[-1]:
        return f"finished: the ranks left training in different steps, {left_in[0]} to {left_in[-1]}"
    if left_in[-1] > status.newest_step:
        return f"finished: the script left training in step {done} (the last would have been step {until - 1})"
    resumed = f", resumed at step {status.resumed_step + 1}" if has_resumed else ""
    return f"finished: the script left training after {done} of {number_of(until, 'step')}{resumed}"


def _kept(status: RunStatus, checkpoints: str) -> tuple[str, str]:
    """Return the newest checkpoint that can be used with its place, and which steps are in none; "": all are in one."""
    try:
        usable = usable_steps(checkpoints, status.run)
    except CommandError:  # the place cannot be read just now, and the run has finished all the same
        return f"checkpoints in {checkpoints}", ""
    newest = usable[-1] if usable else -1
    last = max((status.newest_step, *(_last_step(rank.exit) for rank in status.ranks if rank.HasField("exit"))))
    # A run without any snapshot has given Holdfast no state to save.
    missing = last - newest if usable or status.newest_snapshot >= 0 else 0
    kept = f"newest checkpoint: step {newest}, in {checkpoints}" if usable else "no checkpoint was written"
    if missing <= 0:
        return kept, ""
    which = f"step {last} is" if missing == 1 else f"steps {newest + 1} to {last} are"
    return kept, f"{which} in no checkpoint"


def _last_step(rank_exit: RankExit) -> int:
    """Return the last step that a rank ended as it left: in the phase idle it had ended its loop."""
    return rank_exit.step if rank_exit.phase == PHASE_IDLE else rank_exit.step - 1


def stopped_line(status: RunStatus, checkpoints: str, *, is_bad: bool = False) -> str:
    """Return where a run that stopped as planned will continue; not if a bad loss makes its next start ask for that.

    Raises LastCheckpointError if its last checkpoint was not committed in time.
    """
    usable = usable_steps(checkpoints, status.run)
    if status.left_step not in usable:
        raise LastCheckpointError(
            f"run {status.run} stopped after step {status.left_step}, but its checkpoint was not written:"
            f" {_newest(usable, checkpoints)}. Allow more time with --preemption-grace-s"
        )
    if is_bad:
        return f"{status.run} stopped after step {status.left_step}, as asked"
    return (
        f"{status.run} stopped after step {status.left_step}, as asked: with --run {status.run} it continues from "
        f"its last checkpoint, in {checkpoints}"
    )


def bad_end(status: RunStatus) -> str:
    """Return since when the loss of a run was not finite at its end; "" if it was finite, or none was reported."""
    if not status.HasField("nonfinite_since"):
        return ""
    last = f"the last finite loss was at step {status.finite_loss_step}"
    if not status.HasField("finite_loss_step"):
        last = "no loss was finite"
    return f"the loss was not finite from step {status.nonfinite_since} to the end: {last}"


def interrupted_line(status: RunStatus, checkpoints: str, *, auto: bool = False) -> str:
    """Return after which step an interrupted run stopped, and what is lost of it; "" if it had done no step.

    ``auto``: under ``--auto`` only the script knows what it has saved.
    """
    left = _left(status, checkpoints, auto=auto)
    return f"{status.run} stopped after step {status.newest_step}; {left}" if left else ""


def _left(status: RunStatus, checkpoints: str, *, auto: bool) -> str:
    """Return which checkpoint a run that did not end as planned has left, and what is lost; "" if it did no step."""
    if status.newest_step < 0:
        return ""
    try:
        newest = max(usable_steps(checkpoints, status.run), default=-1)
    except CommandError:  # the place cannot be read just now: the daemon has seen it earlier
        newest = status.newest_checkpoint
    if newest < 0 and auto:
        return "Holdfast has saved nothing of it"
    if newest < 0:
        return f"there is no checkpoint, so {_lost(status.newest_step + 1)}"
    return f"newest checkpoint: step {newest}, in {checkpoints}; {_lost(max(0, status.newest_step - newest))}"


def _lost(steps: int) -> str:
    if not steps:
        return "no step is lost"
    return f"{number_of(steps, 'step')} {'is' if steps == 1 else 'are'} lost"


def ended_badly(status: RunStatus, logs: Path, checkpoints: str, *, auto: bool = False) -> CommandError:
    """Return an error with the reason, the folder of the logs, what is lost, and the exit code of a failed run."""
    newest = status.newest_incident
    # An incident that was overcome is not what ended the run, and what is damaged is part of why it was refused.
    is_other = status.refused or newest.state == INCIDENT_STATE_RECOVERED
    reason = status.outcome or ("" if is_other else newest.verdict.message) or "no reason was given"
    reason = " ".join(reason.split()).removeprefix("holdfast: ")
    if status.refused:
        why = reason.removeprefix("the run was not started: ")
        return CheckpointsUnavailableError(f"run {status.run} was not started: {why} (logs: {logs})")
    line = f"run {status.run} failed: {reason} (logs: {logs})"
    if status.stopped_by_loss:
        return BadLossError(line)  # its reason names the checkpoint to go back to, which need not be the newest
    left = _left(status, checkpoints, auto=auto)
    line += f"; {left}" if left else ""
    is_configuration = newest.verdict.kind == VERDICT_KIND_BAD_CONFIGURATION
    return SettingsError(line) if is_configuration else CommandError(line)


def _newest(usable: list[int], checkpoints: str) -> str:
    return f"that of step {usable[-1]} is the newest in {checkpoints}" if usable else f"there is none in {checkpoints}"
