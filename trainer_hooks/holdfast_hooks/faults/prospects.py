"""Judges whether a fault that an operator requests will strike this rank, from what its loop has done so far."""

from collections.abc import Sequence

from holdfast_hooks.faults.fault import Fault
from holdfast_hooks.phases import AT_STEP_START, Phase

_EVERY_STEP = (Phase.DATA, Phase.OPTIMIZER)
"""Phases that a loop enters in every step, if it reports them at all. It may enter the others now and then."""


class Prospects:
    """Knows the phases that a loop has entered, and the step before which it ends.

    The training thread calls :meth:`step_ended`. Any thread may call the other method.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._entered: frozenset[int] = frozenset((AT_STEP_START,))
        self._until: int | None = None

    def step_ended(self, phase_ns: Sequence[int], until: int) -> None:
        """Note which phases took time in a step of a loop that ends before ``until``."""
        entered = {phase for phase, spent_ns in enumerate(phase_ns) if spent_ns}
        if not entered <= self._entered:
            self._entered |= entered
        self._until = until
        self._steps += 1

    def waits_for(self, fault: Fault) -> str:
        """Return what a fault waits for and may never get, in words; "" if it is bound to strike.

        ``fault.phase`` is the one in which it strikes, with the kind's own filled in. Raises ValueError, with the
        reason, if the fault cannot strike.
        """
        if self._until is not None and fault.step >= self._until:
            raise ValueError(f"the training loop ends with step {self._until - 1}: name an earlier step")
        phase = fault.phase
        if phase is None or phase in self._entered:
            return ""
        word = f"the phase {phase.name.lower()}"
        if phase is Phase.IDLE:
            return f"{word}, which a loop enters after its last step"
        if not self._steps:
            return f"{word}; no step has ended yet, so it is not known whether the training loop enters it"
        steps = "step" if self._steps == 1 else f"{self._steps} steps"
        if phase in _EVERY_STEP:
            raise ValueError(
                f"{fault.kind} strikes in {word}, and the training loop did not enter it in its last {steps}: name "
                "another phase"
            )
        return f"{word}, which the training loop did not enter in its last {steps}"
