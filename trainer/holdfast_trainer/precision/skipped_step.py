"""Optimizers that skip the step of a gradient that overflowed."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

_logger = logging.getLogger("holdfast_trainer")


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
    """Make ``optimizer.step()`` change nothing if ``overflow`` (bool scalar) is true, until the next call of this.

    It takes away the gradients of an optimizer that is neither ours nor skips on the device, after a look at
    ``overflow`` that waits for the device.
    """
    if isinstance(optimizer, SkipsOnHost):
        optimizer.overflow = overflow
    elif getattr(optimizer, "_step_supports_amp_scaling", False):
        # torch.amp.GradScaler sets the same attribute. Fused optimizers read it on the device, so the host need not
        # wait.
        optimizer.found_inf = overflow.to(torch.float32)  # type: ignore[attr-defined]
    else:
        _warn_of_wait(type(optimizer).__name__)
        if overflow.item():
            optimizer.zero_grad(set_to_none=True)


@functools.cache
def _warn_of_wait(kind: str) -> None:
    _logger.warning("%s of torch %s skips no step on the device: each fp16 step waits for it", kind, torch.__version__)
