"""What is known about a step that the loop left by ``break``, ``return`` or ``sys.exit``: was it complete?

The hooks hear of the end of a step when the loop asks for the next one. A loop that is left asks for no more. Then the
version counters of tensors tell: torch raises them at a change in place, so an optimizer's step shows. A script may
leave between two optimizers, or before its scheduler. So what a step has changed is compared with what it should have
changed, going by the steps before it. A state that is wrongly taken for complete is worse than one that is not saved.
"""

import operator
import sys
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast_hooks.state.counterparts import parameters_of

if TYPE_CHECKING:
    import torch

_TRAINED = 4
"""Number of parameters that are looked at in each step: of each optimizer one at least, if there are no more."""
_OTHERS = 4
"""Number of other tensors, such as averaged weights."""
_REMEMBERED = 64
"""Number of steps whose changes are remembered. A loop may do something every few steps only."""

Look = tuple[int, ...]
"""The version counters of the tensors that are looked at, and the counts of steps of optimizers and schedulers."""
Change = tuple[int, ...]
"""By how much a step has raised each of them."""
T = TypeVar("T")


class LeftStep(Enum):
    """What the state is at the end of a loop."""

    NONE = "the loop was not left inside a step"
    COMPLETE = "the state is that after the step in which the loop was left"
    UNKNOWN = "the state may be that of no step: a part of one may have changed it, or random numbers were drawn"


class OpenStep:
    """The step that the loop is in. Only the training thread uses it.

    Args:
        state: the state of :func:`attach`. Without an optimizer in it, nothing is known of any step.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.step = -1
        """The step; -1 outside of steps. The loop sets that itself when a step has ended: a call would cost more."""
        optimizers = _optimizers(state)
        self._counts = [(one, parameters[-1]) for one, parameters in optimizers if isinstance(one.state, dict)]
        """Optimizers, each with a parameter of which its state has a count of steps, if it has any."""
        self._tensors = _tensors(state, [parameters for _, parameters in optimizers])
        # A plain attribute: a property of somebody's own scheduler may raise, and this is read in every step.
        self._schedulers = [
            one for one in state.values() if type(getattr(one, "__dict__", {}).get("last_epoch")) is int
        ]
        self._begun: deque[Look] = deque(maxlen=_REMEMBERED + 1)
        """What the state looked like when the newest steps began, the open one last."""
        self._at_leaving: Look | None = None

    def begin(self, step: int) -> None:
        """Note that ``step`` begins."""
        if self._tensors:
            self._begun.append(self._look())
        self.step = step
        self._at_leaving = None

    def leave(self) -> None:
        """Note that the loop is left here, inside a step: what changes from now on is no part of it."""
        if self._tensors:
            self._at_leaving = self._look()

    def judge(self, *, ended: bool = False) -> LeftStep:
        """Return what the state is now. ``ended``: the loop was left after the end of a step, which is then judged."""
        if self.step < 0 and not ended:
            return LeftStep.NONE
        now = self._look()
        if not self._tensors:
            return LeftStep.UNKNOWN
        begun = list(self._begun)
        changes = list(map(_change, begun, begun[1:]))
        # Counters that never show a step are no witness: a captured CUDA graph changes parameters behind them.
        tensors = len(now) - len(self._schedulers)
        if self._at_leaving not in (None, now) or not any(any(change[:tensors]) for change in changes):
            return LeftStep.UNKNOWN
        done, due = _change(begun[-1], now), _due(changes)
        if self._at_leaving is None:  # the loop's iterator lives on: what is more than usual may have come after it
            return LeftStep.COMPLETE if done == due else LeftStep.UNKNOWN
        # A complete step may have done more than others, such as to end an epoch. It has not done less.
        is_whole = any(done) and all(map(operator.ge, done, due))
        return LeftStep.COMPLETE if is_whole else LeftStep.UNKNOWN

    def _look(self) -> Look:
        try:
            versions = [tensor._version for tensor in self._tensors]  # noqa: SLF001 - it has no public name
            # A fused optimizer changes parameters behind their version counters. Its count of steps shows it. To load a
            # state gives an optimizer a new one.
            steps = [_version(optimizer.state.get(parameter)) for optimizer, parameter in self._counts]
            return (*versions, *steps, *[scheduler.last_epoch for scheduler in self._schedulers])
        except Exception:  # noqa: BLE001 - objects of the user may do anything, and this runs inside the user's loop
            self._tensors = []
            return ()


def _version(values: object) -> int:
    """Return the version of the count of steps in one parameter's state; 0 before the first, or if there is none."""
    return getattr(values.get("step"), "_version", 0) if isinstance(values, dict) else 0


def _due(changes: list[Change]) -> Change:
    """Return what the step after those of ``changes`` should change.

    Steps that do the same in turns, such as to train one part and then another, tell it: the step is like the one that
    many steps before. Of steps without such an order, and in place of none, it is all that any of them has changed.
    """
    for period in range(1, len(changes) // 2 + 1):
        if changes[period:] == changes[:-period] and any(changes[-period]):
            return changes[-period]
    return tuple(map(max, zip(*changes, strict=True)))


def _optimizers(state: Mapping[str, Any]) -> "list[tuple[Any, list[torch.Tensor]]]":
    """Return some optimizers, each with the parameters that it trains."""
    found = []
    for value in state.values():
        parameters = [one for one in parameters_of(value).values() if one.requires_grad and not one.is_inference()]
        if parameters:
            found.append((value, parameters))
    return _spread(found, _TRAINED)


def _tensors(state: Mapping[str, Any], trained: "list[list[torch.Tensor]]") -> "list[torch.Tensor]":
    """Return some parameters of each optimizer, and some tensors of modules that no optimizer has."""
    if not trained:
        return []
    known = {id(parameter) for value in state.values() for parameter in parameters_of(value).values()}
    others = []
    for module in (value for value in state.values() if _is_module(value)):
        own = [tensor for tensor in (*module.parameters(), *module.buffers()) if id(tensor) not in known]
        others += [tensor for tensor in _spread(own, 2) if not tensor.is_inference()]
    each = max(1, _TRAINED // len(trained))
    return [parameter for parameters in trained for parameter in _spread(parameters, each)] + _spread(others, _OTHERS)


def _spread(things: list[T], most: int) -> list[T]:
    """Return at most ``most`` of them, from all over the list, and always the last one."""
    return things[:: -max(1, -(-len(things) // most))]


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _change(before: Look, after: Look) -> Change:
    return tuple(map(operator.sub, after, before))
