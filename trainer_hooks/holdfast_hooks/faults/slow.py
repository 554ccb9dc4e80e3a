"""A rank that takes longer than the others."""

from time import monotonic

from holdfast_hooks.faults.effect import Site
from holdfast_hooks.faults.fault import Fault
from holdfast_hooks.phases import Phase
from holdfast_hooks.telemetry.timeline import Timeline

_SHORTEST_S = 1e-4
"""The moment between the beginning of a step and its first phase is no forward and backward pass."""


class SlowPasses:
    """Makes each forward and backward pass take ``factor`` times as long, by computing.

    The time is added to the phase itself. In a loop that tells no phases it is added to the next step's.
    """

    def __init__(self, fault: Fault, site: Site) -> None:
        self._timeline: Timeline = site.timeline
        self._added = fault.factor - 1.0
        self._until_s = monotonic() + fault.duration_s if fault.duration_s else float("inf")
        self._since_s: float | None = None
        self.moment(site.timeline.step, site.timeline.phase)

    def moment(self, step: int, phase: int) -> bool:
        """Add what the pass that has just ended lacks."""
        since_s, self._since_s = self._since_s, None
        took_s = 0.0 if since_s is None else monotonic() - since_s
        if took_s > _SHORTEST_S:
            if phase == Phase.FORWARD_BACKWARD:
                _compute(self._added * took_s)
            else:
                self._timeline.enter(Phase.FORWARD_BACKWARD)  # where the time belongs
                _compute(self._added * took_s)
                self._since_s = None
                self._timeline.enter(phase)
        if phase == Phase.FORWARD_BACKWARD:
            self._since_s = monotonic()
        return monotonic() > self._until_s

    def end(self) -> None:
        """Nothing to undo."""


def _compute(for_s: float) -> None:
    deadline_s = monotonic() + for_s
    while monotonic() < deadline_s:
        pass
