"""Finds the parameters of a live state, and the live tensor that shows how a saved tensor is spread over ranks."""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast_hooks.state.encoding import Image, Stateful, TensorPart
from holdfast_hooks.state.named_optimizer import ByName

if TYPE_CHECKING:
    import torch


class Counterparts:
    """Knows the tensors of a live state by name, and the parameters to which the state of its optimizers belongs."""

    def __init__(self, state: Mapping[str, Stateful], live: Image) -> None:
        self._parts = {part.name: part for part in live.parts}
        self._parameters = {name: parameters for name, value in state.items() if (parameters := parameters_of(value))}

    def part(self, name: str) -> TensorPart | None:
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


def named_parameters(state: Mapping[str, Any]) -> "Iterator[tuple[str, str, torch.Tensor]]":
    """Yield each parameter of ``state`` once: its owner in ``state``, its name in that module or optimizer, itself.

    A parameter that a module and an optimizer have gets its name from the module.
    """
    seen: set[int] = set()
    of_modules = ((owner, value.named_parameters()) for owner, value in state.items() if _is_module(value))
    of_optimizers = ((owner, parameters_of(value).items()) for owner, value in state.items())
    for owners in (of_modules, of_optimizers):
        for owner, parameters in owners:
            for name, parameter in parameters:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield owner, name, parameter


def parameters_of(stateful: object) -> "dict[str, torch.Tensor]":
    """Return an optimizer's parameters by the keys of its state; nothing for any other object."""
    if isinstance(stateful, ByName):
        return stateful.parameters
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(stateful, torch.optim.Optimizer):
        return {}
    parameters = [parameter for group in stateful.param_groups for parameter in group["params"]]
    return {str(index): parameter for index, parameter in enumerate(parameters)}


def _is_module(value: object) -> bool:
    return hasattr(value, "named_parameters")
