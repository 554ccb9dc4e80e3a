"""Sums of gradients and parameters, which are not finite exactly if an element is not.

A sum takes no memory, unlike a test of each element. (It can also overflow, but only where the numbers are as good as
infinite.) On a GPU it is read later, so that the training thread does not wait for it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast_hooks.state.counterparts import parameters_of
from holdfast_hooks.state.sharding import is_dtensor
from holdfast_hooks.telemetry.deferred import DeferredNumbers

if TYPE_CHECKING:
    import torch


def named_parameters(state: Mapping[str, Any]) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield each parameter of ``state`` once, under its name in a module, else in an optimizer."""
    seen: set[int] = set()
    of_modules = ((owner, value.named_parameters()) for owner, value in state.items() if _is_module(value))
    of_optimizers = ((owner, parameters_of(value).items()) for owner, value in state.items())
    for owners in (of_modules, of_optimizers):
        for owner, parameters in owners:
            for name, parameter in parameters:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{owner}.{name}", parameter


def local_sum(tensor: "torch.Tensor") -> "torch.Tensor | None":
    """Return the sum of this rank's part, or None if there is nothing to add. It makes no collective call."""
    import torch

    local = tensor.to_local() if is_dtensor(tensor) else tensor
    if not local.is_floating_point() or local.is_sparse or not local.numel():
        return None
    return local.detach().sum(dtype=torch.float32)


def deferred(totals: "Iterable[torch.Tensor]") -> DeferredNumbers:
    """Return sums as numbers to come: with one copy from a GPU."""
    import torch

    every = list(totals)
    return DeferredNumbers.of([torch.stack(every)] if every and every[0].is_cuda else every)


def are_finite(totals: Iterable[float]) -> bool:
    """Whether all sums are finite."""
    return all(map(math.isfinite, totals))


def _is_module(value: object) -> bool:
    return hasattr(value, "named_parameters")
