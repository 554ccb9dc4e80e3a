"""The end of a step: from summed gradients to new parameters."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.norms import clip_gradient, step_and_measure
from holdfast_trainer.precision.loss_scaling import LossScaler


@dataclass(frozen=True)
class Update:
    """The result of one update, the same on all ranks."""

    grad_norm: Tensor
    """Norm of the whole model's gradient before clipping."""
    learning_rate: float
    update_norm: Tensor | None
    """Norm of the change of all parameters; None if it was not measured, or if the check has skipped the update."""
    loss_scale: Tensor | None
    """Factor on the loss; None unless the run computes in fp16."""
    overflow: Tensor | None
    """Whether the gradient was not finite, so that nothing changed; None unless the run computes in fp16."""


def update_parameters(
    parts: ModelParts,
    optimizer: Optimizer,
    scaler: LossScaler | None,
    mesh: Mesh,
    *,
    clip_norm: float,
    measured: bool,
    should_update: Callable[[Tensor], bool] | None = None,
) -> Update:
    """Clip the gradients, step, and clear them. All ranks must call it, with the same ``measured``.

    ``should_update``: answers on all ranks alike whether the optimizer may step, given the norm of the gradient. In
    fp16, the scaler has its say first: it adapts the scale to each gradient, and to one that is finite but too large as
    to any other.
    """
    learning_rate: float = optimizer.param_groups[0]["lr"]
    loss_scale = scaler.scale.clone() if scaler else None
    grad_norm = clip_gradient(parts.parameters(), mesh, clip_norm=clip_norm, loss_scale=loss_scale)
    overflow = scaler.judge(optimizer, grad_norm) if scaler else None
    update_norm = None
    if should_update is None or should_update(grad_norm):
        if measured:
            update_norm = step_and_measure(optimizer, mesh)
        else:
            optimizer.step()
    optimizer.zero_grad()
    return Update(grad_norm, learning_rate, update_norm, loss_scale, overflow)
