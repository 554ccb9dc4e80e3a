"""Judges the condition of each rank, to show the odd ones first."""

from enum import IntEnum

from holdfast_proto.exit_codes import signal_name
from holdfast_proto.v1.control_pb2 import RANK_HEALTH_STALLED, RANK_HEALTH_WAITING, RankView
from holdfast_proto.v1.store_pb2 import LIFE_EXITED, LIFE_RUNNING


class Condition(IntEnum):
    """Condition of a rank. The oddest comes first, so that sorting puts it on top."""

    DEAD = 0
    STOPPED = 1
    STALLED = 2
    STARTING = 3
    WAITING = 4
    """It makes no progress because it waits for other ranks."""
    RUNNING = 5
    ENDED = 6
    FINISHED = 7


def condition(rank: RankView) -> Condition:
    """Return the condition of a rank, as the daemon has judged its health."""
    if rank.life == LIFE_EXITED:
        if not rank.HasField("exit"):
            return Condition.ENDED  # by Holdfast, with its run: nobody waited for its exit
        ended_well = rank.exit.HasField("code") and rank.exit.code == 0
        return Condition.FINISHED if ended_well else Condition.DEAD
    if rank.process_state in ("T", "t"):
        return Condition.STOPPED
    if rank.life != LIFE_RUNNING:
        return Condition.STARTING
    if rank.health == RANK_HEALTH_STALLED:
        return Condition.STALLED
    return Condition.WAITING if rank.health == RANK_HEALTH_WAITING else Condition.RUNNING


def describe(rank: RankView, judged: Condition) -> str:
    """Return the condition in words, with its cause or its length where there is one."""
    if judged is Condition.DEAD:
        return f"dead: {_cause_of_death(rank)}"
    if judged is Condition.STOPPED:
        return f"{'held by a debugger' if rank.process_state == 't' else 'stopped'} for {rank.stalled_s:.1f} s"
    if judged is Condition.STALLED:
        return f"no progress for {rank.stalled_s:.1f} s"
    if judged is Condition.WAITING:
        return f"waits for other ranks for {rank.stalled_s:.1f} s"
    return judged.name.lower()


def _cause_of_death(rank: RankView) -> str:
    if rank.exit.HasField("signal"):
        return signal_name(rank.exit.signal)
    if rank.exit.HasField("code"):
        return f"exit code {rank.exit.code}"
    return "cause unknown"
