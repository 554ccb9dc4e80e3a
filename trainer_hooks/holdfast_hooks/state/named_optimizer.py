"""An optimizer's state by parameter names, which are the same in every layout."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""Parts of names that activation checkpointing and torch.compile add. The names in a model's state lack them."""


def by_name(optimizer: "torch.optim.Optimizer", modules: "torch.nn.Module | Iterable[torch.nn.Module]") -> "ByName":
    """Return a Stateful of ``optimizer`` for the ``state`` of :func:`attach`, so that it loads in any layout.

    Args:
        optimizer: any torch optimizer.
        modules: the model, or the parts of it that this rank holds, with all parameters of the optimizer.

    The state is ``{"state": {parameter name: {...}}, "groups": [{"params": [names], ...}]}``. Groups are identified by
    their order, so every rank must make the same groups, even if it has no parameter for some. Raises ValueError if two
    parts have a parameter of the same name, or if no part has a parameter of the optimizer.
    """
    import torch

    return ByName(optimizer, [modules] if isinstance(modules, torch.nn.Module) else list(modules))


class ByName:
    """Saves and restores an optimizer's state by parameter names. :func:`by_name` makes it."""

    def __init__(self, optimizer: "torch.optim.Optimizer", modules: "list[torch.nn.Module]") -> None:
        self._optimizer = optimizer
        names = _names(modules)
        optimized = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not all(id(parameter) in names for parameter in optimized):
            raise ValueError("by_name(): the optimizer has parameters that none of the modules has; pass all modules")
        self._names = {parameter: names[id(parameter)] for parameter in optimized}

    @property
    def parameters(self) -> "dict[str, torch.Tensor]":
        """Parameters of the optimizer, by name."""
        return {name: parameter for parameter, name in self._names.items()}

    @property
    def state(self) -> "dict[torch.Tensor, dict[str, Any]]":
        """The live state of the optimizer, by parameter."""
        return self._optimizer.state

    def state_dict(self) -> dict[str, Any]:
        """Return the live state; nothing is copied."""
        names = self._names
        return {
            "state": {names[parameter]: values for parameter, values in self._optimizer.state.items()},
            "groups": [
                {**group, "params": [names[parameter] for parameter in group["params"]]}
                for group in self._optimizer.param_groups
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the parameters that this rank has, and the hyperparameters of each group.

        Raises ValueError if the number of groups differs.
        """
        groups = self._optimizer.param_groups
        if len(groups) != len(state_dict["groups"]):
            raise ValueError(f"{len(state_dict['groups'])} parameter groups were saved, here are {len(groups)}")
        number = {name: index for index, name in enumerate(self._names.values())}
        counts = iter(range(len(number)))
        packed = [
            {**saved, "params": [next(counts) for _ in group["params"]]}
            for group, saved in zip(groups, state_dict["groups"], strict=True)
        ]
        state = {number[name]: values for name, values in state_dict["state"].items() if name in number}
        self._optimizer.load_state_dict({"state": state, "param_groups": packed})


def _names(modules: "list[torch.nn.Module]") -> dict[int, str]:
    names: dict[int, str] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            for wrapper in _WRAPPERS:
                name = name.replace(wrapper, "")  # noqa: PLW2901 - still a name
            names.setdefault(id(parameter), name)
    if len(set(names.values())) < len(names):
        raise ValueError("by_name(): two parameters have the same name; give modules the names of the whole model")
    return names
