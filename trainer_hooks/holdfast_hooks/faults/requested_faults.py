"""Faults that operators request of this rank: accepted if they will strike and can be seen, and armed once answered.

Only a run that allows faults imports this module: see ``holdfast_hooks.sidecar``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast_hooks.faults.catalogue import CATALOGUE
from holdfast_hooks.faults.corruption import can_flip
from holdfast_hooks.faults.fault import Fault, Site
from holdfast_hooks.faults.injector import Injector
from holdfast_hooks.phases import AT_STEP_START, Phase
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.v1 import fault_pb2

if TYPE_CHECKING:
    import torch

_EVERY_STEP = (Phase.DATA, Phase.OPTIMIZER)
"""Phases that a loop enters in every step, if it reports them at all. It may enter the others now and then."""


class Prospects:
    """Knows the phases that a loop has entered, the step before which it ends, and the tensors that are compared.

    The training thread calls :meth:`step_ended`. Any thread may call the other method.

    Args:
        compared: returns the tensors that are compared with those of other ranks; None: not known yet.
    """

    def __init__(self, compared: "Callable[[], Sequence[torch.Tensor] | None]") -> None:
        self._compared = compared
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
        reason, if the fault cannot strike, or if nobody could see it.
        """
        if CATALOGUE[fault.kind].needs_replica:
            self._check_replica(fault.kind)
        if self._until is not None and fault.step >= self._until:
            # A script may iterate over steps() several times, each time up to a later step.
            return f"step {fault.step}, and the present loop over steps() ends with step {self._until - 1}"
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

    def _check_replica(self, kind: str) -> None:
        compared = self._compared()
        if compared is None:
            raise ValueError(
                f"{kind} shows only in a weight that another rank holds, too. Which these are is known after the first "
                "step: try again then"
            )
        if not any(map(can_flip, compared)):
            raise ValueError(
                f"Holdfast cannot see {kind} here: no weight of this rank is compared with a copy on another rank "
                "(docs/detectors.md says which are)"
            )


class RequestedFaults:
    """Answers requests for faults, arms what it has accepted, and ends it.

    The reporter thread calls :meth:`accept` and :meth:`answered`, the training thread the other methods.

    Args:
        state: given to ``attach``.
        compared: returns the tensors that are compared with those of other ranks; None: not known yet.
    """

    def __init__(
        self,
        timeline: Timeline,
        state: Mapping[str, Any],
        compared: "Callable[[], Sequence[torch.Tensor] | None]",
        rank: int,
    ) -> None:
        self._injector = Injector(Site(timeline, state, compared), rank)
        self._prospects = Prospects(compared)
        self._accepted: list[Fault] = []
        self.step_ended = self._prospects.step_ended
        self.disarm = self._injector.disarm

    def accept(self, message: fault_pb2.Fault) -> str:
        """Return what the fault waits for, in words; "" if it is bound to strike. Raises ValueError if it cannot."""
        accepted = self._injector.accept(Fault.from_message(message))
        awaited = [waits_for for one in accepted if (waits_for := self._prospects.waits_for(one))]
        self._accepted += accepted
        return "; ".join(awaited)

    def answered(self) -> None:
        """Arm the accepted faults, now that their answers are sent: this rank may not live to send more."""
        if self._accepted:
            accepted, self._accepted = self._accepted, []
            self._injector.lie_in_wait(accepted)
