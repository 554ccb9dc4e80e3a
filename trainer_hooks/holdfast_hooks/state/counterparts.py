"""Finds the live tensor that shows the device of a saved tensor, and how it is spread over ranks."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast_hooks.state.encoding import Image, Part, Stateful
from holdfast_hooks.state.named_optimizer import ByName

if TYPE_CHECKING:
    import torch


class Counterparts:
    """Knows the tensors of a live state by name, and the parameters to which the state of its optimizers belongs."""

    def __init__(self, state: Mapping[str, Stateful], live: Image) -> None:
        self._parts = {part.name: part for part in live.parts}
        self._parameters = {name: parameters for name, value in state.items() if (parameters := parameters_of(value))}

    def part(self, name: str) -> Part | None:
        """Return the live tensor of this name, or None."""
        return self._parts.get(name)

    def sharded_like(self, name: str) -> "torch.Tensor | None":
        """Return the live tensor of this name, or the parameter that an optimizer's state belongs to."""
        if name in self._parts:
            return self._parts[name].source
        owner, _, place_in_owner = name.partition("/")
        match place_in_owner.split("/"):
            case ["state", key, *_]:
                return self._parameters.get(owner, {}).get(key)
        return None

    def wants(self, container: str, key: str) -> bool:
        """Whether the saved value ``key`` of an empty container belongs to this rank.

        In an optimizer's state, values of its parameters do. Anywhere else, every value does.
        """
        owner, _, place_in_owner = container.partition("/")
        return place_in_owner != "state" or owner not in self._parameters or key in self._parameters[owner]


def parameters_of(stateful: object) -> "dict[str, torch.Tensor]":
    """Return an optimizer's parameters by the keys of its state; nothing for any other object."""
    if isinstance(stateful, ByName):
        return stateful.parameters
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(stateful, torch.optim.Optimizer):
        return {}
    parameters = [parameter for group in stateful.param_groups for parameter in group["params"]]
    return {str(index): parameter for index, parameter in enumerate(parameters)}
