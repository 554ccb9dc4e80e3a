"""Several parts of a model as one state."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def merged(modules: "Iterable[torch.nn.Module]") -> "MergedModules":
    """Return a Stateful of several parts of one model, for a rank that holds several pipeline stages.

    Names stay as they are, so they must be the names in the whole model. Raises ValueError if two parts share a name.
    """
    return MergedModules(list(modules))


class MergedModules:
    """Saves and restores several modules under the names in the whole model. :func:`merged` makes it."""

    def __init__(self, modules: "list[torch.nn.Module]") -> None:
        self._modules = modules
        counts = Counter(name for module in modules for name in module.state_dict())
        name, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if count > 1:
            raise ValueError(f"merged(): {count} modules have a {name}; give each stage the names of the whole model")

    def modules(self) -> "Iterator[torch.nn.Module]":
        """Yield every module of all parts, as ``torch.nn.Module.modules`` does for one."""
        for module in self._modules:
            yield from module.modules()

    def named_parameters(self) -> "Iterator[tuple[str, torch.nn.Parameter]]":
        """Yield the parameters of all parts with their names."""
        for module in self._modules:
            yield from module.named_parameters()

    def state_dict(self) -> dict[str, Any]:
        """Return the live state of all parts; nothing is copied."""
        return {name: value for module in self._modules for name, value in module.state_dict().items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load each part's values into it. Raises KeyError if one is missing, RuntimeError if torch refuses one."""
        for module in self._modules:
            module.load_state_dict({name: state_dict[name] for name in module.state_dict()})
