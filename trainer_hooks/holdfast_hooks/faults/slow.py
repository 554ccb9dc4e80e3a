"""A rank that takes longer than the others."""

from time import monotonic

from holdfast_hooks.faults.effect import Site
from holdfast_hooks.faults.fault import Fault
from holdfast_hooks.phases import Phase
from holdfast_hooks.telemetry.timeline import Timeline

_SHORTEST_S = 1e-4
"""Shortest time that counts as a pass. The moment between a step's start and its first phase is shorter."""


class SlowPasses:
    """Makes each forward and backward pass take ``factor`` times as long, by computing.

    It adds the time to the phase itself. In a loop that reports no phases, it adds the time to the next step's phase.
    """

    def __init__(self, fault: Fault, site: Site) -> None:
        self._timeline: Timeline = site.timeline
        self._added = fault.factor - 1.0
        self._until_s = monotonic() + fault.duration_s if fault.duration_s else float("inf")
        self._since_s: float | None = None
        self.moment(site.timeline.step, site.timeline.phase)

    def moment(self, step: int, phase: int) -> bool:  # noqa: ARG002 - the protocol of effects
        """Add the missing time to the pass that has just ended."""
        since_s, self._since_s = self._since_s, None
        took_s = 0.0 if since_s is None else monotonic() - since_s
        if took_s > _SHORTEST_S:
            if phase == Phase.FORWARD_BACKWARD:
                _compute(self._added * took_s)
            else:
                self._timeline.enter(Phase.FORWARD_BACKWARD)  # to which the time belongs
                _compute(self._added * took_s)
                self._since_s = None
                self._timeline.enter(phase)
        if phase == Phase.FORWARD_BACKWARD:
            self._since_s = monotonic()
        return monotonic() > self._until_s

    def end(self) -> None:
        """Do nothing: there is nothing to undo."""


def _compute(for_s: float) -> None:
    deadline_s = monotonic() + for_s
    while monotonic() < deadline_s:
        pass
