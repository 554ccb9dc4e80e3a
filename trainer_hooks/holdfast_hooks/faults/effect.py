"""What a fault may harm, and what of it lasts beyond its strike."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast_hooks.faults.fault import Fault
from holdfast_hooks.telemetry.timeline import Timeline

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Site:
    """The rank that is struck."""

    timeline: Timeline
    state: Mapping[str, Any]
    """As given to ``attach``."""

    def modules(self) -> "Iterator[torch.nn.Module]":
        """Every module of the state that has parameters of its own, in the model's order."""
        for part in self.state.values():
            if hasattr(part, "modules"):
                yield from (module for module in part.modules() if any(True for _ in module.parameters(recurse=False)))


class Effect(Protocol):
    """What is left of a fault after it has struck. Training thread only."""

    def moment(self, step: int, phase: int) -> bool:
        """Look at the next moment of the rank; return whether the fault is over."""

    def end(self) -> None:
        """Undo what can be undone, before its time."""


Strike: TypeAlias = Callable[[Fault, Site], Effect | None]
"""Does the harm, on the training thread. May block, raise, or never return."""
