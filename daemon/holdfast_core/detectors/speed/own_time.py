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
    device_s: float = 0.0
    """Time that its GPU worked and did not wait for others. The host's times of such a rank say nothing: they are 0."""

    @property
    def is_of_device(self) -> bool:
        """Whether the time was measured on a GPU, and can be compared with that of GPUs only."""
        return self.device_s > 0.0


def is_measured(rank: store.RankState) -> bool:
    """Whether the training thread's time shows what the rank does: one that waits for a GPU spins, and looks busy."""
    return not rank.device.startswith("cuda")


def own_times(
    before: Mapping[int, store.RankState], after: Mapping[int, store.RankState], *, least_steps: int
) -> dict[int, OwnTime]:
    """Return the own time of each rank that has made ``least_steps`` between two moments of one generation.

    On a CPU, the training thread's time shows what a rank needs for itself. Ranks whose thread could not be looked at
    in one of the moments are left out: their busy time is an older one. A thread that waits for a GPU spins, and looks
    busy: there only the time that was measured on the GPU counts.
    """
    pairs = ((number, before[number], rank) for number, rank in after.items() if number in before)
    found = {number: _measured(then, now, least_steps) for number, then, now in pairs if not now.HasField("exit")}
    return {number: own for number, own in found.items() if own is not None}


def _measured(then: store.RankState, now: store.RankState, least_steps: int) -> OwnTime | None:
    if now.device_steps or not is_measured(now):
        return _device_time(then, now, least_steps)
    if not then.thread_state or not now.thread_state or now.steps_done - then.steps_done < least_steps:
        return None
    return _host_time(then, now)


def _device_time(then: store.RankState, now: store.RankState, least_steps: int) -> OwnTime | None:
    """Return the time on the GPU; None if too few steps are known, as where work and waiting cannot be separated."""
    steps, spent_s = now.device_steps - then.device_steps, now.device_own_s - then.device_own_s
    if steps < max(1, least_steps) or spent_s <= 0.0:
        return None
    return OwnTime(busy_s=0.0, data_s=0.0, optimizer_s=0.0, occasional_s=0.0, device_s=spent_s / steps)


def _host_time(then: store.RankState, now: store.RankState) -> OwnTime:
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
