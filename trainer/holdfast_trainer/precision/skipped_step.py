"""Optimizers that skip the step of a gradient that overflowed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


class SkipsOnHost:
    """An optimizer that reads the flag on the host before it steps. Reading waits for the device."""

    overflow: Tensor | None = None
    """Flag that skips the next step (bool scalar). None: do not skip."""

    def skips(self) -> bool:
        """Return the flag."""
        return self.overflow is not None and bool(self.overflow.item())


class SkippingSGD(SkipsOnHost, SGD):
    """SGD that skips on the host. torch's fused SGD could skip on the device, but takes no sharded parameters."""

    # torch promises a float to those who pass a closure, and a skipped step has none.
    def step(self, closure: Callable[[], float] | None = None) -> Any:  # noqa: ANN401
        """Step, unless the gradient overflowed."""
        return None if self.skips() else super().step(closure)


def skip_step_if(optimizer: Optimizer, overflow: Tensor) -> None:
    """Make ``optimizer.step()`` change nothing if ``overflow`` (bool scalar) is true, until the next call of this."""
    if isinstance(optimizer, SkipsOnHost):
        optimizer.overflow = overflow
        return
    assert getattr(optimizer, "_step_supports_amp_scaling", False), "only fused optimizers skip on the device"
    # torch.amp.GradScaler sets the same attribute. Fused optimizers read it on the device, so the host need not wait.
    optimizer.found_inf = overflow.to(torch.float32)  # type: ignore[attr-defined]
