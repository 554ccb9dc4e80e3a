"""A planned stop: all ranks leave the training loop at the end of one step, after a last checkpoint.

An operator requests it, or a node that is about to be taken away. It has a deadline: what is not done by then is cut
short. In an observed run, a planned stop only means that the ranks will end by then, and that this is no incident.
"""

from holdfast_core import detection, incidents
from holdfast_core.detectors.deaths.dead_rank import DeadRank
from holdfast_core.detectors.deaths.death import is_clean
from holdfast_core.detectors.deaths.late_exit import is_training_over
from holdfast_core.recovery import observed, suspicion
from holdfast_core.recovery.ending import RESEND_S, finish
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED


def ask(tick: Tick, grace_s: float) -> None:
    """Have the run end within ``grace_s``; of several requests the first counts."""
    if tick.record.phase == store.RUN_PHASE_WAITING:
        finish(tick, store.RUN_PHASE_FAILED, "stopped before it began")
    elif tick.record.phase not in ENDED and not tick.record.leave_by_unix_s:
        with tick.edit_record() as record:
            record.leave_by_unix_s = tick.now + grace_s
        if tick.observes:
            tick.enter(store.RUN_PHASE_LEAVING)


def follow_nodes(tick: Tick) -> None:
    """Begin a planned stop if a node of the run is about to be taken away; end one whose time is over."""
    leaving = [tick.state.nodes[name].leave_in_s for name in tick.record.nodes if name in tick.state.nodes]
    if any(leaving):
        ask(tick, min(leave_in_s for leave_in_s in leaving if leave_in_s))
    record = tick.record
    is_over = record.leave_by_unix_s and tick.now >= record.leave_by_unix_s and record.phase not in ENDED
    if is_over and tick.observes:
        observed.watch_on(tick)
    elif is_over and record.leave_step and is_training_over(tick.ranks, tick.world_size):
        finish(tick, store.RUN_PHASE_FINISHED, f"stopped after step {record.newest_step}")
    elif is_over:
        reason = "the time to stop in (--preemption-grace-s) was too short for a last checkpoint"
        incidents.close(tick, store.INCIDENT_STATE_FAILED, reason)
        finish(tick, store.RUN_PHASE_FAILED, reason)


def begin(tick: Tick) -> None:
    """Choose the step at whose end all ranks leave; wait while no step has been timed."""
    step = tick.step_ahead()
    if step is not None:
        with tick.edit_record() as record:
            record.leave_step = step
        tick.enter(store.RUN_PHASE_LEAVING)
        _send(tick)


def _send(tick: Tick) -> None:
    message = store.LeaveAt(step=tick.record.leave_step)
    tick.send(tick.record.nodes, lambda _: store.NodeCommand(leave=message))


def leaving(tick: Tick) -> None:
    """Wait until every rank has left with code 0."""
    if tick.observes:
        observed.see_end(tick)
        return
    if all_left(tick):
        left_step = min(rank.exit.step for rank in tick.ranks.values())
        with tick.edit_record() as record:
            record.left_step = left_step
            record.newest_step = max(tick.record.newest_step, left_step)
        finish(tick, store.RUN_PHASE_FINISHED, f"stopped after step {left_step}")
        return
    for finding in detection.look_at_tick(tick, [DeadRank.name]):
        incidents.note_incident(tick, finding.verdict, last_progress_unix_s=finding.last_progress_unix_s)
        finish(tick, store.RUN_PHASE_FAILED, f"{finding.verdict.message}, while the run was to stop")
        return
    suspicion.watch(tick)
    if _may_not_know(tick) and tick.now - tick.state.sent_unix_s > RESEND_S:
        _send(tick)


def all_left(tick: Tick) -> bool:
    """Whether every rank of the world has ended, with code 0 or after its training was over."""
    ended = tick.ranks.ended
    if len(ended) < tick.world_size:
        return False
    return all(is_clean(rank.exit) for rank in ended.values()) or is_training_over(tick.ranks, tick.world_size)


def _may_not_know(tick: Tick) -> bool:
    """Whether all ranks are still before the step: after it, all know of it."""
    return all(rank.progress.step < tick.record.leave_step for rank in tick.ranks.values())
