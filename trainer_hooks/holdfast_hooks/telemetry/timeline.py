"""The training thread's step and phase, and the time that each takes."""

import logging
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Protocol

from holdfast_hooks.phases import AT_STEP_START, BEFORE_FIRST_STEP, Phase
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_proto.v1.session_pb2 import StepRecord


class RecordPart(Protocol):
    """A part of a step's record that the training thread begins and the reporter thread finishes."""

    def put(self, record: StepRecord) -> bool:
        """Put the part into the record of its step; return False while a GPU still owes some of its numbers."""


log = logging.getLogger("holdfast_hooks")

Values = dict[str, float | bytes | DeferredNumbers | RecordPart]
"""Values of one step, from the loop's reports and the hooks' own checks, by the field names of StepRecord."""

StepSample = tuple[int, int, int, list[int], Values]
"""One finished step, in the form that is cheapest to make: step, Unix time of its end in ns, duration in ns,
ns spent in each phase by phase number, values."""

Moment = Callable[[int, int, int], None]
"""Function that takes each change of step or phase: (step, phase, Unix time in ns)."""

_NO_TIME = [0] * (max(Phase) + 1)
_STEP_START = int(AT_STEP_START)  # at each step, an enum's attribute would cost more than the rest of its line


class Timeline:
    """Measures how long each step takes and how long the training thread is in each phase of it.

    The training thread alone writes it. Other threads may read ``step``, ``phase`` and ``boundary``.

    Args:
        moment: is called at each change of step or phase.
    """

    __slots__ = (
        "_began_ns",
        "_has_refused",
        "_moment",
        "_outside_ns",
        "_phase_ns",
        "_since_ns",
        "_unix_offset_ns",
        "boundary",
        "phase",
        "step",
        "values",
    )

    def __init__(self, moment: Moment) -> None:
        self.step = -1
        self.phase: int = BEFORE_FIRST_STEP
        self.boundary = -1
        """Newest step whose end has been reached."""
        self.values: Values = {}
        self._moment = moment
        self._has_refused = False
        self._began_ns = self._since_ns = monotonic_ns()
        self._unix_offset_ns = time_ns() - self._since_ns
        self._outside_ns = self._phase_ns = _NO_TIME.copy()
        moment(-1, self.phase, time_ns())

    def intercept(self, moment: Moment) -> Moment:
        """Report to ``moment`` from now on; return the function that got the moments before (any thread)."""
        before, self._moment = self._moment, moment
        return before

    def give_back(self, moment: Moment, before: Moment) -> bool:
        """Undo :meth:`intercept`; return False, and change nothing, while another one has intercepted ``moment``."""
        if self._moment != moment:
            return False
        self._moment = before
        return True

    def begin(self, step: int) -> None:
        """Start to measure ``step``."""
        now_ns = monotonic_ns()
        self._phase_ns[self.phase] += now_ns - self._since_ns
        if self._phase_ns is not self._outside_ns:
            self._abandon()
        self._began_ns = self._since_ns = now_ns
        self._phase_ns = _NO_TIME.copy()
        self.values = {}
        self.step = step
        self.phase = _STEP_START
        self._moment(step, _STEP_START, now_ns + self._unix_offset_ns)

    def enter(self, phase: int) -> None:
        """Count the time from now on to ``phase``. What is no phase is logged once and ignored."""
        now_ns = monotonic_ns()
        times_ns = self._phase_ns
        try:
            _ = times_ns[phase]  # the cheapest way to find out whether this is a phase
        except (TypeError, IndexError):
            self._refuse(phase)
            return
        times_ns[self.phase] += now_ns - self._since_ns
        self._since_ns = now_ns
        self.phase = phase
        self._moment(self.step, phase, now_ns + self._unix_offset_ns)

    def _refuse(self, phase: object) -> None:
        if not self._has_refused:
            log.warning("enter(%r) was ignored, because that is no phase: use holdfast_hooks.Phase", phase)
        self._has_refused = True

    def end(self) -> StepSample:
        """Close the current step and return its times and values."""
        now_ns = monotonic_ns()
        spent_ns = self._phase_ns
        spent_ns[self.phase] += now_ns - self._since_ns
        self._since_ns = now_ns
        self._phase_ns = self._outside_ns
        # Read both clocks once a step, because the system's clock may be set during the run.
        unix_ns = time_ns()
        self._unix_offset_ns = unix_ns - now_ns
        return self.step, unix_ns, now_ns - self._began_ns, spent_ns, self.values

    def close(self) -> None:
        """Count the time in the present phase, because no other phase follows."""
        now_ns = monotonic_ns()
        self._phase_ns[self.phase] += now_ns - self._since_ns
        self._since_ns = now_ns
        if self._phase_ns is not self._outside_ns:
            self._abandon()

    def _abandon(self) -> None:
        """Count the time of a step that the loop has left by ``break`` as time outside of steps."""
        for phase, spent_ns in enumerate(self._phase_ns):
            self._outside_ns[phase] += spent_ns
        self._phase_ns = self._outside_ns

    def outside_s(self) -> dict[int, float]:
        """Return the seconds spent in each phase outside of steps, up to the last change of phase (any thread)."""
        return {phase: spent_ns / 1e9 for phase, spent_ns in enumerate(self._outside_ns.copy()) if spent_ns}
