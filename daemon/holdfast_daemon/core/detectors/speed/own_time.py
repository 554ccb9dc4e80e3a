"""What a rank needed for itself per step, as against time in which it waited for others."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_OCCASIONAL = (common.PHASE_CHECKPOINT, common.PHASE_EVAL, common.PHASE_IDLE, common.PHASE_INIT)
"""What a rank does in these, others need not do."""


@dataclass(frozen=True)
class OwnTime:
    """Seconds per step of one rank, over some steps."""

    busy_s: float
    """Its training thread computed, or was ready to and waited for a core."""
    data_s: float
    """In the data phase, by the clock."""
    optimizer_s: float
    """In the optimizer phase, by the clock: its own work and waits alike."""
    occasional_s: float
    """In phases that are no part of most steps, by the clock: so much of ``busy_s`` at most was no training."""
    asleep_s: float = 0.0
    """Time that its training thread slept in forward, backward or the optimizer while no call was pending."""


def is_measured(rank: store.RankState) -> bool:
    """Whether the training thread's time shows what the rank does: one that waits for a GPU spins, and looks busy."""
    return not rank.device.startswith("cuda")


def own_times(
    before: Mapping[int, store.RankState], after: Mapping[int, store.RankState], *, least_steps: int
) -> dict[int, OwnTime]:
    """Return the own time of each rank that has made ``least_steps`` between two moments of one generation.

    Ranks whose thread could not be looked at in one of the moments are left out: their busy time is an older one.
    """
    pairs = ((number, before[number], rank) for number, rank in after.items() if number in before)
    return {
        number: _own_time(then, now)
        for number, then, now in pairs
        if is_measured(now)
        and not now.HasField("exit")
        and then.thread_state
        and now.thread_state
        and now.steps_done - then.steps_done >= least_steps
    }


def _own_time(then: store.RankState, now: store.RankState) -> OwnTime:
    steps = now.steps_done - then.steps_done
    spent_s, before_s = dict(now.phase_s), dict(then.phase_s)

    def per_step(phase: int) -> float:
        return (spent_s.get(phase, 0.0) - before_s.get(phase, 0.0)) / steps

    return OwnTime(
        busy_s=(now.busy_s - then.busy_s) / steps,
        data_s=per_step(common.PHASE_DATA),
        optimizer_s=per_step(common.PHASE_OPTIMIZER),
        occasional_s=sum(map(per_step, _OCCASIONAL)),
        asleep_s=max(0.0, now.own_wait_s - then.own_wait_s) / steps,
    )
