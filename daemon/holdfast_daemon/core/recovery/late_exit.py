"""Ends a run whose training is over and whose last processes do not end."""

from holdfast_daemon.core import incidents
from holdfast_daemon.core.detectors.deaths.late_exit import is_training_over
from holdfast_daemon.core.recovery.ending import FINISHED, finish
from holdfast_daemon.core.restart_patience import RestartPatience
from holdfast_daemon.core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store


def end(tick: Tick) -> bool:
    """End the run if nothing has moved for long in the processes that are left. Its result is that of its last step."""
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
