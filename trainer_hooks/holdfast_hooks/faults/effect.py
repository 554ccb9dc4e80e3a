"""The interfaces of a fault: the rank that it harms, its strike, and the effect that lasts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast_hooks.faults.fault import Fault
from holdfast_hooks.telemetry.timeline import Timeline

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
