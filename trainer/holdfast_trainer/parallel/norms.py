"""Norms over the whole model, of which every rank holds a part: clipping by the gradient's, and that of an update."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from holdfast_trainer.parallel.mesh import Mesh

_CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_: a gradient of zeros is not divided by zero."""


@torch.no_grad()
def clip_gradient(
    parameters: Iterable[nn.Parameter], mesh: Mesh, *, clip_norm: float, loss_scale: Tensor | None = None
) -> Tensor:
    """Scale the gradient of the whole model down to ``clip_norm`` if it is larger; return its norm before.

    Gradients that are ``loss_scale`` times too large are divided by it, and so is the norm. All ranks must call it;
    all get the same norm. One all-reduce over the world does, whatever meshes the parameters are on, since every
    element of the model's gradient is counted by exactly one rank.
    """
    gradients = [parameter.grad for parameter in parameters]
    shards = [_local(gradient) for gradient in gradients]
    counted = [shard for shard, gradient in zip(shards, gradients, strict=True) if _is_counted_here(gradient, mesh)]
    square = get_total_norm(counted).square().to(shards[0].device)  # the norm of nothing is on the CPU
    dist.all_reduce(square)
    norm = square.sqrt()
    if loss_scale is not None:
        norm = norm / loss_scale
    factor = (clip_norm / (norm + _CLIP_EPSILON)).clamp(max=1.0)
    if loss_scale is not None:
        factor = factor / loss_scale
    for shard in shards:
        shard.mul_(factor)
    return norm


@torch.no_grad()
def step_and_measure(optimizer: Optimizer, mesh: Mesh) -> Tensor:
    """Step the optimizer; return the norm of the change of all parameters. All ranks must call it, all get the same.

    The parameters are stepped one by one, with the bits of a step of all at once, so that there is a copy of one
    only. That costs a call of the optimizer for each, too much for every step: ask for it on those that are logged.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    changes = [
        _step_one(optimizer, parameter, gradient) for parameter, gradient in zip(parameters, gradients, strict=True)
    ]
    counted = [
        change for change, parameter in zip(changes, parameters, strict=True) if _is_counted_here(parameter, mesh)
    ]
    square = torch.stack(counted).square().sum() if counted else torch.zeros((), device=changes[0].device)
    dist.all_reduce(square)
    return square.sqrt()


def _step_one(optimizer: Optimizer, parameter: Tensor, gradient: Tensor | None) -> Tensor:
    before = _local(parameter).clone()
    parameter.grad = gradient
    optimizer.step()
    parameter.grad = None
    change: Tensor = torch.linalg.vector_norm(_local(parameter) - before)
    return change


def _local(tensor: Tensor | None) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def _is_counted_here(tensor: Tensor | None, mesh: Mesh) -> bool:
    """Whether this rank is the one that counts its shard: the first along each axis with copies of it."""
    assert isinstance(tensor, DTensor)
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    if "tp" not in (tensor.device_mesh.mesh_dim_names or ()) and mesh.index("tp") > 0:
        return False
    copies = [index for index, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate()]
    return not any(copies)
