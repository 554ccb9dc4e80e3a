"""How an optimizer skips the step of a gradient that overflowed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


class SkipsOnHost:
    """An optimizer that looks at the flag itself before it steps, which waits for the device."""

    overflow: Tensor | None = None
    """Whether the next step is skipped (bool scalar); None: it is not."""

    def skips(self) -> bool:
        """Return the flag."""
        return self.overflow is not None and bool(self.overflow.item())


class SkippingSGD(SkipsOnHost, SGD):
    """SGD. torch's fused one, which could skip on the device, does not take sharded parameters."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Step, unless the gradient overflowed."""
        return None if self.skips() else super().step(closure)


def skip_step_if(optimizer: Optimizer, overflow: Tensor) -> None:
    """Have ``optimizer.step()`` change nothing if ``overflow`` (bool scalar) holds, until the next call of this."""
    if isinstance(optimizer, SkipsOnHost):
        optimizer.overflow = overflow
        return
    assert getattr(optimizer, "_step_supports_amp_scaling", False), "only fused optimizers skip on the device"
    # They read this flag, which torch.amp.GradScaler sets too, on the device: nobody waits for it.
    optimizer.found_inf = overflow.to(torch.float32)  # type: ignore[attr-defined]
