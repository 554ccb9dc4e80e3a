"""The end of a step: from summed gradients to new parameters."""

from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.norms import clip_gradient, step_and_measure
from holdfast_trainer.precision.loss_scaling import LossScaler


@dataclass(frozen=True)
class Update:
    """What one update did, the same on all ranks."""

    grad_norm: Tensor
    """Of the whole model's gradient, before it was clipped."""
    learning_rate: float
    update_norm: Tensor | None
    """Of the change of all parameters, if it was measured."""
    loss_scale: Tensor | None
    """With fp16: by what the loss was multiplied."""
    overflow: Tensor | None
    """With fp16: whether the gradient was not finite, and so nothing changed."""


def update_parameters(
    parts: ModelParts,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    scaler: LossScaler | None,
    mesh: Mesh,
    *,
    clip_norm: float,
    measured: bool,
) -> Update:
    """Clip, step and forget the gradients. All ranks must call it, with the same ``measured``."""
    learning_rate: float = optimizer.param_groups[0]["lr"]
    loss_scale = scaler.scale.clone() if scaler else None
    grad_norm = clip_gradient(parts.parameters(), mesh, clip_norm=clip_norm, loss_scale=loss_scale)
    overflow = scaler.judge(optimizer, grad_norm) if scaler else None
    update_norm = None
    if measured:
        update_norm = step_and_measure(optimizer, mesh)
    else:
        optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return Update(grad_norm, learning_rate, update_norm, loss_scale, overflow)
