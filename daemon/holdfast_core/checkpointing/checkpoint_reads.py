"""Checkpoints that exist and cannot be read: a start is refused, and a run that has trained waits for them.

A missing or unreadable file says nothing about its contents and may come back: a file system is mounted again, a store
becomes reachable again. So neither an older checkpoint nor the seed is used instead.
"""

from holdfast_core import incidents
from holdfast_core.checkpointing import checkpoint_failures
from holdfast_core.recovery.ending import finish
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
REASON_PATIENCE_S = 2.0
"""Time to wait for the reason of a failed start. A node reports the failure in its state, and in an event that its
checkpoint was the reason; the event may come later."""

_FIX = (
    "start the run again when the files are back (is the file system mounted, the store reachable?), or with"
    " --from-scratch to train from the seed: it keeps these checkpoints until --keep new ones are written"
)


def may_be_unreadable(tick: Tick) -> bool:
    """Whether an event may still be on its way that says that a start failed because its checkpoint is damaged."""
    record = tick.record
    failed = any(
        node.failed_generation == record.generation and not node.awaits_files for node in tick.state.nodes.values()
    )
    from_checkpoint = failed and record.source == store.SOURCE_CHECKPOINT
    is_reported = record.resumed_step in record.unreadable_checkpoints
    return from_checkpoint and not is_reported and tick.now - record.phase_since_unix_s < REASON_PATIENCE_S


def failure(tick: Tick) -> str:
    """Return why the newest generation could not read its checkpoint; empty: no node reports that."""
    generation = tick.record.generation
    if tick.record.source == store.SOURCE_REPLICA:
        return ""  # the next start is from another state, and waits for nothing
    return next(
        (
            node.failure
            for node in tick.state.nodes.values()
            if node.failed_generation == generation and node.awaits_files
        ),
        "",
    )


def refuse(tick: Tick, reason: str) -> None:
    """End a run that has checkpoints and cannot use them. The checkpoints stay as they are."""
    with tick.edit_record() as record:
        record.refused = True
    outcome = f"the run was not started: {reason}"
    incidents.close(tick, store.INCIDENT_STATE_FAILED, outcome)
    finish(tick, store.RUN_PHASE_FAILED, outcome)


def refuse_damaged(tick: Tick) -> None:
    """End a run whose checkpoints are all damaged."""
    refuse(
        tick,
        "no checkpoint can be read, all are damaged: `holdfast checkpoint verify --all` names the files; restore one of"
        " them from a copy and start the run again, or start it with --from-scratch to train from the seed",
    )


def refuse_bad(tick: Tick, before_step: int) -> None:
    """End a run that was to return to a state from before a bad loss, and has none that can be used."""
    outcome = (
        f"the run cannot return to a state from before step {before_step}: none can be used any more; start it again"
        " with --continue-from and the step of an earlier checkpoint, or with --from-scratch"
    )
    incidents.close(tick, store.INCIDENT_STATE_FAILED, outcome)
    finish(tick, store.RUN_PHASE_FAILED, outcome, is_state_good=False)


def may_try_again(tick: Tick, reason: str) -> bool:
    """Return whether to try the read again now that failed for ``reason``; end the run if it has never trained."""
    record = tick.record
    if not record.trained:
        refuse(tick, f"{reason}; {_FIX}")
        return False
    if not record.read_again_unix_s:
        _begin_wait(tick, reason)
        return False
    if tick.now < record.read_again_unix_s:
        return False
    with tick.edit_record() as edited:
        edited.read_again_unix_s = 0.0
    return True


def see_training(tick: Tick) -> None:
    """Note that a rank has completed a step: the run has read its checkpoint."""
    record = tick.record
    if record.trained and not record.failed_reads:
        return
    incident = tick.state.incidents.get(record.reads_incident)
    if incident is not None:
        incidents.add_line(tick, incident, "the checkpoint's files could be read again, and the run trains")
    with tick.edit_record() as edited:
        edited.trained = True
        edited.failed_reads = 0
        edited.read_again_unix_s = 0.0
        edited.reads_incident = ""


def _begin_wait(tick: Tick, reason: str) -> None:
    record = tick.record
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(record.failed_reads, 16))
    if not record.failed_reads:
        detail = store.CheckpointDetail(trouble=store.CHECKPOINT_TROUBLE_WAITING, reason=reason)
        incident = checkpoint_failures.note(tick, detail, record.resumed_step)
        incidents.add_line_to_open(tick, f"waits for the files of the checkpoint of step {record.resumed_step}")
        with tick.edit_record() as edited:
            edited.reads_incident = incident.id
    with tick.edit_record() as edited:
        edited.failed_reads = record.failed_reads + 1
        edited.read_again_unix_s = tick.now + pause_s
