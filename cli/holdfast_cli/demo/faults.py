"""Injects faults into the demonstration's run, one after the other, and remembers when."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast_cli.control import ControlError
from holdfast_hooks.faults import Fault
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_OPEN,
    INCIDENT_STATE_STANDSTILL,
    LIFE_RUNNING,
    RUN_PHASE_RUNNING,
)


@dataclass(frozen=True)
class PlannedFault:
    """A fault, due when the run has completed ``after_step``."""

    kind: str
    """Kind of the fault, in one word for people."""
    fault: Fault
    after_step: int
    plan: str
    """Plan in words."""


@dataclass(frozen=True)
class Injected:
    """A fault that a rank has accepted."""

    kind: str
    rank: int
    step: int
    """Step that the rank was in."""
    unix_s: float
    """Time just before the request. A fault with a phase strikes up to a step later."""


class FaultPlan:
    """Requests ``faults`` in order. Each waits until the run has recovered from the one before.

    ``inject`` requests a fault and returns once its rank has accepted it. It raises ControlError if that was not the
    moment; the plan then tries again.
    """

    def __init__(self, faults: Sequence[PlannedFault], inject: Callable[[Fault], object]) -> None:
        self._waiting = list(faults)
        self._inject = inject
        self.injected: list[Injected] = []

    def observe(self, status: RunStatus) -> None:
        """Look at a new status and inject the next fault if it is time."""
        if not self._waiting or not self._is_well(status):
            return
        planned = self._waiting[0]
        rank = next((rank for rank in status.ranks if rank.rank == planned.fault.rank), None)
        if rank is None or rank.life != LIFE_RUNNING or status.newest_step < planned.after_step:
            return
        now_unix_s = time.time()
        try:
            self._inject(planned.fault)
        except ControlError:
            return
        self.injected.append(Injected(planned.kind, planned.fault.rank, rank.step, now_unix_s))
        self._waiting.pop(0)

    def story(self) -> str:
        """Return what was done and what will be, in words."""
        done = [f"{fault.kind} of rank {fault.rank} at step {fault.step}: done" for fault in self.injected]
        return "; ".join([*done, *(planned.plan for planned in self._waiting)])

    def _is_well(self, status: RunStatus) -> bool:
        if status.phase != RUN_PHASE_RUNNING:
            return False
        if not self.injected:
            return True
        newest = status.newest_incident
        answered = newest.detected_unix_s > self.injected[-1].unix_s
        return answered and newest.state not in (INCIDENT_STATE_OPEN, INCIDENT_STATE_STANDSTILL)
