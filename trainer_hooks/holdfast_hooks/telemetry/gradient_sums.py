"""Sums of gradients and parameters. A sum is not finite if an element is not.

It can also overflow, but only where the numbers are as good as infinite. A sum takes no memory, unlike a test of each
element. On a GPU it is read later, so that the training thread does not wait for it.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast_hooks.state.sharding import is_dtensor
from holdfast_hooks.telemetry.deferred import DeferredNumbers

if TYPE_CHECKING:
    import torch


def local_sum(tensor: "torch.Tensor") -> "torch.Tensor | None":
    """Return the sum of this rank's part, or None if there is nothing to add. It makes no collective call."""
    import torch

    local = tensor.to_local() if is_dtensor(tensor) else tensor
    if not local.is_floating_point() or local.is_sparse or not local.numel():
        return None
    return local.detach().sum(dtype=torch.float32)


def deferred(totals: "Iterable[torch.Tensor]") -> DeferredNumbers:
    """Return sums as numbers to come: with one copy from a GPU, if all are on the same one."""
    import torch

    every = list(totals)
    devices = {one.device for one in every}
    return DeferredNumbers.of([torch.stack(every)] if len(devices) == 1 and every[0].is_cuda else every)


def are_finite(totals: Iterable[float]) -> bool:
    """Whether all sums are finite."""
    return all(map(math.isfinite, totals))
