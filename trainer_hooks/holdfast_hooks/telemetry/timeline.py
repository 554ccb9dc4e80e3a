"""Where the training thread is, and how long it was in each phase."""

from collections.abc import Callable
from time import monotonic_ns, time_ns

from holdfast_hooks.phases import Phase
from holdfast_hooks.replicas.replicas import ReplicaSums
from holdfast_hooks.telemetry.gradient_origin import GradientSums
from holdfast_hooks.telemetry.scalars import DeferredScalar

Values = dict[str, float | bytes | DeferredScalar | ReplicaSums | GradientSums]
"""What was reported for one step, and what the hooks themselves found out, by the field names of StepRecord."""


StepSample = tuple[int, int, int, list[int], Values]
"""One finished step, in the form that is cheapest to make: step, Unix time of its end in ns, duration in ns,
ns spent in each phase by phase number, reported values."""


class Timeline:
    """Written by the training thread alone; other threads may read ``step``, ``phase`` and ``boundary``.

    Args:
        moment: told (step, phase, Unix time in ns) whenever one of them changes.
    """

    __slots__ = (
        "_began_ns",
        "_moment",
        "_phase_ns",
        "_since_ns",
        "_unix_offset_ns",
        "boundary",
        "phase",
        "step",
        "values",
    )

    def __init__(self, moment: Callable[[int, int, int], None]) -> None:
        self.step = -1
        self.phase: int = Phase.INIT
        self.boundary = -1
        """Newest step whose end has been reached."""
        self.values: Values = {}
        self._moment = moment
        self._began_ns = self._since_ns = monotonic_ns()
        self._unix_offset_ns = time_ns() - self._since_ns
        self._phase_ns = [0] * (max(Phase) + 1)
        moment(-1, Phase.INIT, time_ns())

    def intercept(self, moment: Callable[[int, int, int], None]) -> Callable[[int, int, int], None]:
        """Report each moment to ``moment`` from now on; return what it was reported to before (any thread)."""
        before, self._moment = self._moment, moment
        return before

    def give_back(self, moment: Callable[[int, int, int], None], before: Callable[[int, int, int], None]) -> bool:
        """Undo :meth:`intercept`; return False, and change nothing, while another one has intercepted ``moment``."""
        if self._moment != moment:
            return False
        self._moment = before
        return True

    def begin(self, step: int) -> None:
        """The training thread starts to work on ``step``."""
        now_ns = monotonic_ns()
        self._began_ns = self._since_ns = now_ns
        self._phase_ns = [0, 0, 0, 0, 0, 0, 0, 0]
        self.values = {}
        self.step = step
        self.phase = 3  # Phase.FORWARD_BACKWARD; an enum's attribute costs more than the rest of the line
        self._moment(step, 3, now_ns + self._unix_offset_ns)

    def enter(self, phase: int) -> None:
        """The training thread is in ``phase`` from now on."""
        now_ns = monotonic_ns()
        self._phase_ns[self.phase] += now_ns - self._since_ns
        self._since_ns = now_ns
        self.phase = phase
        self._moment(self.step, phase, now_ns + self._unix_offset_ns)

    def end(self) -> StepSample:
        """Close the current step and return what is known of it."""
        now_ns = monotonic_ns()
        self._phase_ns[self.phase] += now_ns - self._since_ns
        self._since_ns = now_ns
        # Read both clocks once a step: the system's clock may be set while the run goes on.
        unix_ns = time_ns()
        self._unix_offset_ns = unix_ns - now_ns
        return self.step, unix_ns, now_ns - self._began_ns, self._phase_ns, self.values
