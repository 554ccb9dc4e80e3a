"""What is known about a step that the loop left by ``break``, ``return`` or ``sys.exit``: was it complete?

The hooks hear of the end of a step when the loop asks for the next one. A loop that is left asks for no more. Then the
version counters of parameters tell: torch raises them at each change in place, so an optimizer's step shows.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from holdfast_hooks.state.counterparts import parameters_of

if TYPE_CHECKING:
    import torch

_WATCHED = 4
"""Number of parameters that are looked at in each step: some may have no gradient in some steps."""


class LeftStep(Enum):
    """What the state is at the end of a loop."""

    NONE = "the loop was not left inside a step"
    COMPLETE = "the state is that after the step in which the loop was left"
    UNTOUCHED = "the state is that after the step before, as far as the optimizers decide"
    UNKNOWN = "nothing shows it, or the parameters have changed since"


class OpenStep:
    """The step that the loop is in. Only the training thread uses it.

    Args:
        state: the state of :func:`attach`. Only its optimizers are looked at.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.step = -1
        """The step; -1 outside of steps."""
        self._watched = _spread(state)
        self._before: list[int] = []
        self._at_leaving: list[int] | None = None
        self._is_telling = False
        """Whether the counters have ever shown a step. A captured CUDA graph changes parameters behind them."""

    def begin(self, step: int) -> None:
        """Note that ``step`` begins."""
        if self._watched:
            versions = self._versions()
            self._is_telling = self._is_telling or (self.step >= 0 and versions != self._before)
            self._before = versions
        self.step = step
        self._at_leaving = None

    def end_loop(self) -> None:
        """Note that the loop has ended as it should."""
        self.step = -1

    def leave(self) -> None:
        """Note that the loop is left here, inside a step: what changes from now on is no part of it."""
        self._at_leaving = self._versions()

    def judge(self) -> LeftStep:
        """Return what the state is now."""
        if self.step < 0:
            return LeftStep.NONE
        now = self._versions()
        if not now or self._at_leaving not in (None, now):
            return LeftStep.UNKNOWN
        if now != self._before:
            return LeftStep.COMPLETE
        return LeftStep.UNTOUCHED if self._is_telling else LeftStep.UNKNOWN

    def _versions(self) -> list[int]:
        return [parameter._version for parameter in self._watched]  # noqa: SLF001 - it has no public name


def _spread(state: Mapping[str, Any]) -> "list[torch.Tensor]":
    """Return some parameters, from all over the optimizers."""
    every = [parameter for value in state.values() for parameter in parameters_of(value).values()]
    trained = [parameter for parameter in every if parameter.requires_grad and not parameter.is_inference()]
    return trained[:: max(1, -(-len(trained) // _WATCHED))]
