"""What is ordered about checkpoints: to take one for an operator or by time, to let go of its slots, to keep one."""

from holdfast_daemon.core import incidents
from holdfast_daemon.core.ahead import step_ahead
from holdfast_daemon.core.model import CheckpointOrdered
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.session_pb2 import ReleaseAt


def serve(turn: Turn) -> None:
    """Order a checkpoint for an operator, or say why there is none now."""
    if turn.observes:
        turn.actions.append(CheckpointOrdered(-1, "the run is only observed: its own program takes its checkpoints"))
    elif turn.record.phase != store.RUN_PHASE_RUNNING:
        phase = store.RunPhase.Name(turn.record.phase).removeprefix("RUN_PHASE_").lower()
        turn.actions.append(CheckpointOrdered(-1, f"the run is {phase}, not running: try again when it is"))
    elif not turn.ranks:
        turn.actions.append(CheckpointOrdered(-1, "no node of the run is heard of: try again when one is"))
    else:
        step = _order(turn)
        reason = "no step has been timed yet: try again after the next one"
        turn.actions.append(CheckpointOrdered(-1, reason) if step is None else CheckpointOrdered(step))


def order_by_time(turn: Turn) -> None:
    """Order a checkpoint if the newest one, whatever brought it about, is older than the run wants."""
    every_s, since = turn.state.spec.checkpoint_every_s, turn.record.checkpoint_since_unix_s
    if every_s and not since:
        turn.record_update(checkpoint_since_unix_s=turn.now)
    elif every_s and turn.now - since >= every_s:
        _order(turn)


def restart_timer(turn: Turn) -> None:
    """A checkpoint is there, or under way: the next one by time is due that much later."""
    if turn.state.spec.checkpoint_every_s:
        turn.record_update(checkpoint_since_unix_s=turn.now)


def release(turn: Turn, checkpoint: int) -> None:
    """Have all ranks let go of the slots of a checkpoint, committed or failed, at the end of the same step.

    Sent once: ranks that hear nothing of it let go after a while all the same.
    """
    trains = turn.record.phase in (store.RUN_PHASE_RUNNING, store.RUN_PHASE_LEAVING)
    step = step_ahead(turn) if trains else None
    if step is not None:
        order = ReleaseAt(step=checkpoint, at_step=step)
        for node in turn.record.nodes:
            turn.send_to(node, store.NodeCommand(generation=turn.record.generation, release_snapshot=order))


def keep_newest_before(turn: Turn, step: int, incident: store.Incident) -> None:
    """Have the newest checkpoint of an earlier step than ``step`` kept, and add that to the incident's story."""
    committed = {known for node in turn.state.nodes.values() for known in node.checkpoints}
    good = max((known for known in committed - set(turn.record.unreadable_checkpoints) if known < step), default=None)
    if good is None:
        incidents.tell(turn, incident, "there is no checkpoint from before it that could be kept")
    else:
        order = store.KeepCheckpoint(step=good, reason=incident.verdict.message)
        turn.send(turn.record.nodes, lambda _: store.NodeCommand(keep_checkpoint=order))
        incidents.tell(turn, incident, f"the checkpoint of step {good}, from before it, is kept")


def _order(turn: Turn) -> int | None:
    step = step_ahead(turn)
    if step is not None:
        turn.send(turn.record.nodes, lambda _: store.NodeCommand(take_checkpoint=store.TakeCheckpoint(step=step)))
        restart_timer(turn)
    return step
