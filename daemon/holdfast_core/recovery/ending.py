"""The end of a run, whatever the reason."""

from holdfast_core import incidents
from holdfast_core.accounting import ledger
from holdfast_core.checkpointing import checkpoint_commands, proven_steps
from holdfast_core.detectors.deaths.late_exit import is_training_over
from holdfast_core.detectors.framework import RECOVERABLE
from holdfast_core.recovery import standstills
from holdfast_core.recovery.restart_patience import RestartPatience
from holdfast_core.tick import Tick
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ends_badly

FINISHED = "finished"

RESEND_S = 2.0
"""Pause before a command whose effect is not seen is sent again. Agents carry out each command once."""

_EVIDENCE_PATIENCE_S = 6.0
"""Time to wait for the evidence of what ended a run that is not started again."""

_LEAST_PATIENCE_S = 0.1
_ALL_GONE = "all ranks have ended, and the mode of the run allows no restart"
_BAD_END = "the run ended with a loss that was not finite"


def finish(tick: Tick, phase: "store.RunPhase", outcome: str, *, is_state_good: bool = True) -> None:
    """End the run: it never starts again. A state that is not good is not written as a last checkpoint."""
    standstills.drop(tick, f"the run has ended: {outcome}", state=store.INCIDENT_STATE_NOTED)
    ledger.close_account(tick, failed=phase == store.RUN_PHASE_FAILED)
    with tick.edit_record() as record:
        record.outcome = outcome
        if not record.HasField("bad_loss") and ends_badly(tick.state.spec, record.loss_counts):
            doubtful = proven_steps.first_doubtful(tick)
            record.bad_loss.CopyFrom(store.BadLoss(from_step=doubtful, reason=_BAD_END, since_unix_s=tick.now))
    if is_state_good and (phase == store.RUN_PHASE_FAILED or _has_left_early(tick)):
        checkpoint_commands.persist_newest_snapshot(tick)  # agents end only when what they write is on disk
    tick.enter(phase)
    _send_finish(tick)


def _has_left_early(tick: Tick) -> bool:
    """Whether a rank left before the end of its loop, or had a loop that names no end.

    Then nobody knows whether its newest state is on its way to a checkpoint. What is on its way is not written twice.
    """
    newest = tick.record.newest_step
    for ended in (rank.exit for rank in tick.ranks.values() if rank.HasField("exit")):
        # A rank whose loop has ended is idle. The report of its last step may still be on its way.
        done = max(newest, ended.step) if ended.phase == common.PHASE_IDLE else newest
        if not ended.steps_until or ended.steps_until > done + 1:
            return True
    return False


def end_after_training(tick: Tick) -> bool:
    """End a run whose training is over if nothing has moved for long in the processes that are left.

    Return whether it has. The run's result is that of its last step.
    """
    if tick.observes or tick.state.spec.mode != store.MODE_ACT or not is_training_over(tick.ranks, tick.world_size):
        return False
    left = [rank for rank in tick.ranks.values() if not rank.HasField("exit")]
    least_s = RestartPatience.of(tick.state.spec, tick.record).leaving_s
    if not left or any(rank.traced or rank.still_s < least_s for rank in left):
        return False
    numbers = ", ".join(str(rank.rank) for rank in left)
    who = f"rank {numbers} did" if len(left) == 1 else f"ranks {numbers} did"
    what = f"{who} not exit after training: ended, as nothing had moved there for {least_s:.0f} s"
    incidents.close(tick, store.INCIDENT_STATE_RECOVERED, "the run finished", recovered_unix_s=tick.now)
    finish(tick, store.RUN_PHASE_FINISHED, f"{FINISHED}; {what}")
    return True


def end_without_restart(tick: Tick) -> bool:
    """End a run of mode observe as failed once all its ranks have ended: nothing will start them again.

    Return whether it has. It waits for the verdict on what ended them, and for the evidence of that. A run of another
    launcher is never ended: the launcher may start the ranks again.
    """
    ranks = tick.ranks.values()
    if tick.observes or tick.state.spec.mode == store.MODE_ACT or len(ranks) < tick.world_size:
        return False
    # Ranks that were aborted for different calls, or gave up waiting for a culprit, end after a reported standstill.
    noted = [
        one
        for one in tick.state.incidents.values()
        if one.generation == tick.record.generation
        and one.state in (store.INCIDENT_STATE_NOTED, store.INCIDENT_STATE_STANDSTILL)
        and one.verdict.kind in RECOVERABLE
    ]
    if not noted or not all(rank.HasField("exit") for rank in ranks):
        return False
    cause = max(noted, key=lambda one: one.detected_unix_s)
    has_evidence = len(tick.record.nodes) == 1 and cause.evidence
    if not has_evidence and tick.now - cause.detected_unix_s < _EVIDENCE_PATIENCE_S:
        return False
    incidents.resolve(tick, cause, _ALL_GONE, state=store.INCIDENT_STATE_FAILED)
    with tick.edit_record() as record:
        record.standstill_incident = ""
    finish(tick, store.RUN_PHASE_FAILED, f"{cause.verdict.message}; {_ALL_GONE}")
    return True


def _send_finish(tick: Tick) -> None:
    record = tick.record
    succeeded = record.phase == store.RUN_PHASE_FINISHED and not ends_badly(tick.state.spec, record.loss_counts)
    message = store.FinishRun(outcome=record.outcome, succeeded=succeeded)
    if record.HasField("bad_loss"):
        message.bad_loss.CopyFrom(record.bad_loss)
    if record.leave_by_unix_s:
        message.patience_s = max(_LEAST_PATIENCE_S, record.leave_by_unix_s - tick.now)
    tick.send(sorted(tick.state.nodes), lambda _: store.NodeCommand(finish=message))


def ended(tick: Tick) -> None:
    """Repeat the command to finish until every agent has left."""
    if tick.state.nodes and tick.now - tick.state.sent_unix_s > RESEND_S:
        _send_finish(tick)
