"""One fault: its kind, its rank, when it strikes, and the interfaces of its strike and of what lasts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast_hooks.phases import Phase
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.v1 import fault_pb2


@dataclass(frozen=True)
class Fault:
    """One fault of one rank. The catalogue says which kinds take ``duration_s``, ``factor`` and ``seed``."""

    kind: str
    """Name in the catalogue."""
    rank: int = 0
    step: int = -1
    """Step in which it strikes, or after which it strikes when the rank enters ``phase``; -1: immediately."""
    phase: Phase | None = None
    """Phase that the rank enters when it strikes; None: the kind's phase, else it strikes as the step begins."""
    duration_s: float = 0.0
    """Seconds that it lasts; 0: forever."""
    factor: float = 0.0
    seed: int = 0

    def is_due(self, step: int, phase: int) -> bool:
        """Whether to strike a rank that has just come to this step and phase."""
        return step >= self.step and (self.phase is None or phase == self.phase)

    @classmethod
    def from_message(cls, message: fault_pb2.Fault) -> "Fault":
        """Return the fault of a command. Raises ValueError for a phase that this version does not know."""
        return cls(
            kind=message.kind,
            rank=message.rank,
            step=message.step,
            phase=Phase(message.phase) if message.phase else None,
            duration_s=message.duration_s,
            factor=message.factor,
            seed=message.seed,
        )

    def to_message(self) -> fault_pb2.Fault:
        """Return the message that commands this fault."""
        return fault_pb2.Fault(
            kind=self.kind,
            rank=self.rank,
            step=self.step,
            phase=self.phase or 0,  # type: ignore[arg-type]
            duration_s=self.duration_s,
            factor=self.factor,
            seed=self.seed,
        )


if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Site:
    """The rank that a fault harms, as its faults see it."""

    timeline: Timeline
    state: Mapping[str, Any]
    """State given to ``attach``."""
    compared: "Callable[[], Sequence[torch.Tensor] | None]" = tuple
    """Returns the tensors that are compared with those of other ranks; None: not known yet."""

    def modules(self) -> "Iterator[torch.nn.Module]":
        """Yield every module of the state that has parameters of its own, in the model's order."""
        for part in self.state.values():
            if hasattr(part, "modules"):
                yield from (module for module in part.modules() if any(True for _ in module.parameters(recurse=False)))


class Effect(Protocol):
    """The part of a fault that lasts after its strike. Training thread only."""

    def moment(self, step: int, phase: int) -> bool:
        """Act on the next change of step or phase; return whether the fault is over."""

    def end(self) -> None:
        """End the fault before its time, and undo what can be undone."""


Strike: TypeAlias = Callable[[Fault, Site], Effect | None]
"""Function that does the harm, on the training thread. It may block, raise, or never return."""
