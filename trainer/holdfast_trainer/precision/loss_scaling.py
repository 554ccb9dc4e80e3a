"""Dynamic loss scaling for fp16, which keeps gradients above the numbers that fp16 rounds to zero.

Micikevicius et al., "Mixed Precision Training", 2018, with the constants of torch.amp.GradScaler. The scale is a tensor
on the device. The norm of the gradient decides how it changes. That norm is the same on all ranks, so all ranks have
the same scale, bit by bit, without a collective of its own.
"""

from typing import Protocol, TypedDict

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast_trainer.config_sections import PrecisionConfig
from holdfast_trainer.precision.skipped_step import skip_step_if

_GROWTH = 2.0
_BACKOFF = 0.5
_SMALLEST, _LARGEST = 1.0, 2.0**32
"""Bounds of the scale. Without them, a run whose gradients are all infinite, or all zero, would lose its scale. They
are powers of two, as every scale should be: then scaling and unscaling are exact."""


class LossScalerState(TypedDict):
    """The scaler's part of a checkpoint."""

    scale: float
    good_steps: int
    """Number of steps since the last overflow or growth."""


class LossScaler:
    """Scales the loss of a run on one rank, and adapts the scale after each step."""

    def __init__(self, config: PrecisionConfig, device: torch.device) -> None:
        self.scale = torch.tensor(config.loss_scale, dtype=torch.float32, device=device)
        """Scale of the loss, an fp32 scalar. It is updated in place, so that others can hold on to the tensor."""
        self._good_steps = torch.zeros((), dtype=torch.int64, device=device)
        self._interval = config.loss_scale_interval

    def scale_gradient(self, loss: Tensor) -> Tensor:
        """Return ``loss`` with the same value. Its gradient is multiplied by the scale."""
        scaled: Tensor = _ScaleGradient.apply(loss, self.scale)  # type: ignore[no-untyped-call]
        return scaled

    @torch.no_grad()
    def judge(self, optimizer: Optimizer, grad_norm: Tensor) -> Tensor:
        """Return whether the gradient overflowed (bool scalar), and adapt the scale for the next loss.

        After an overflow, ``optimizer.step()`` changes nothing until the next call. ``grad_norm`` is the norm of the
        whole model's unscaled gradient, the same on all ranks. If one element is not finite, neither is the norm.
        """
        overflow = ~grad_norm.isfinite()
        skip_step_if(optimizer, overflow)
        self._adapt(overflow)
        return overflow

    def _adapt(self, overflow: Tensor) -> None:
        overflow = overflow.to(self.scale.device)
        self._good_steps.add_(1).masked_fill_(overflow, 0)
        grows = self._good_steps >= self._interval
        self._good_steps.masked_fill_(grows, 0)
        factor = torch.where(overflow, _BACKOFF, torch.where(grows, _GROWTH, 1.0))
        self.scale.mul_(factor).clamp_(_SMALLEST, _LARGEST)

    def state_dict(self) -> LossScalerState:
        """Return plain numbers. Waits for the device."""
        return {"scale": self.scale.item(), "good_steps": int(self._good_steps.item())}

    def load_state_dict(self, state: LossScalerState, /) -> None:
        """Continue from a state that :meth:`state_dict` returned."""
        self.scale.fill_(state["scale"])
        self._good_steps.fill_(state["good_steps"])


def make_loss_scaler(config: PrecisionConfig, device: torch.device) -> LossScaler | None:
    """Return a scaler if the run computes in fp16, else None. ``device`` is that of the gradients."""
    return LossScaler(config, device) if config.compute == "fp16" else None


class _ScaleContext(Protocol):
    """Values that forward() keeps for backward()."""

    scale: Tensor


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _ScaleContext, loss: Tensor, scale: Tensor) -> Tensor:
        ctx.scale = scale
        return loss.clone()  # A view would not do: pipeline schedules detach the loss in place.

    @staticmethod
    def backward(ctx: _ScaleContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.scale, None
