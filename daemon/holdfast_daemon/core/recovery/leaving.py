"""A planned stop: all ranks leave the training loop at the end of one step, after a last checkpoint.

Asked for by an operator, or by a node that is going away. A deadline belongs to it: what is not done by
then is cut short. Of ranks that somebody else has launched it only says that they will end by then, and that this is
no incident.
"""

from holdfast_daemon.core import detection, incidents
from holdfast_daemon.core.ahead import step_ahead
from holdfast_daemon.core.death import is_clean
from holdfast_daemon.core.detectors.deaths.dead_rank import DeadRank
from holdfast_daemon.core.detectors.deaths.late_exit import is_training_over
from holdfast_daemon.core.recovery import observed, suspicion
from holdfast_daemon.core.recovery.ending import ENDED, RESEND_S, finish
from holdfast_daemon.core.turn import Turn
from holdfast_proto.v1 import store_pb2 as store


def ask(turn: Turn, grace_s: float) -> None:
    """Have the run end within ``grace_s``; of several wishes the first counts."""
    if turn.record.phase == store.RUN_PHASE_WAITING:
        finish(turn, store.RUN_PHASE_FAILED, "stopped before it began")
    elif turn.record.phase not in ENDED and not turn.record.leave_by_unix_s:
        turn.record_update(leave_by_unix_s=turn.now + grace_s)
        if turn.observes:
            turn.enter(store.RUN_PHASE_LEAVING)


def absorb_wishes(turn: Turn) -> None:
    """See whether a node of the run is going away, and whether the time to leave is over."""
    leaving = [turn.state.nodes[name].leave_in_s for name in turn.record.nodes if name in turn.state.nodes]
    if any(leaving):
        ask(turn, min(leave_in_s for leave_in_s in leaving if leave_in_s))
    record = turn.record
    is_over = record.leave_by_unix_s and turn.now >= record.leave_by_unix_s and record.phase not in ENDED
    if is_over and turn.observes:
        observed.watch_on(turn)
    elif is_over and record.leave_step and is_training_over(turn.ranks, turn.world_size):
        finish(turn, store.RUN_PHASE_FINISHED, f"stopped after step {record.newest_step}")
    elif is_over:
        reason = "the time to stop in (--preemption-grace-s) was too short for a last checkpoint"
        incidents.close(turn, store.INCIDENT_STATE_FAILED, reason)
        finish(turn, store.RUN_PHASE_FAILED, reason)


def begin(turn: Turn) -> None:
    """Agree on the step; until one has been timed, that waits."""
    step = step_ahead(turn)
    if step is not None:
        turn.enter(store.RUN_PHASE_LEAVING, leave_step=step)
        _send(turn)


def _send(turn: Turn) -> None:
    order = store.LeaveAt(step=turn.record.leave_step)
    turn.send(turn.record.nodes, lambda _: store.NodeCommand(leave=order))


def leaving(turn: Turn) -> None:
    """Wait until every rank has left with code 0."""
    if turn.observes:
        observed.see_end(turn)
        return
    if all_left(turn):
        left_step = min(rank.exit.step for rank in turn.ranks.values())
        turn.record_update(left_step=left_step, newest_step=max(turn.record.newest_step, left_step))
        finish(turn, store.RUN_PHASE_FINISHED, f"stopped after step {left_step}")
        return
    for seen in detection.look_at_turn(turn, [DeadRank.name]):
        incidents.note_incident(turn, seen.verdict, last_progress_unix_s=seen.last_progress_unix_s)
        finish(turn, store.RUN_PHASE_FAILED, f"{seen.verdict.message}, while the run was to stop")
        return
    suspicion.watch(turn)
    if _may_not_know(turn) and turn.now - turn.state.sent_unix_s > RESEND_S:
        _send(turn)


def all_left(turn: Turn) -> bool:
    """Whether every rank of the world has ended, with code 0 or after its training was over."""
    ranks = turn.ranks.values()
    if len(ranks) < turn.world_size or not all(rank.HasField("exit") for rank in ranks):
        return False
    return all(is_clean(rank.exit) for rank in ranks) or is_training_over(turn.ranks, turn.world_size)


def _may_not_know(turn: Turn) -> bool:
    """Whether all ranks are still before the step: none needs to be told after it."""
    return all(rank.progress.step < turn.record.leave_step for rank in turn.ranks.values())
