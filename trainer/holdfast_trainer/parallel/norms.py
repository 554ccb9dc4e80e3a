"""Norms over the whole model, of which each rank holds a part: gradient clipping, and the norm of an update."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from holdfast_trainer.parallel.mesh import Mesh

_CLIP_EPSILON = 1e-6
"""Number added to the norm before the division, as in torch.nn.utils.clip_grad_norm_. The norm may be 0."""


@torch.no_grad()
def clip_gradient(
    parameters: Iterable[nn.Parameter], mesh: Mesh, *, clip_norm: float, loss_scale: Tensor | None = None
) -> Tensor:
    """Scale the gradient of the whole model down to ``clip_norm`` if it is larger. Return its norm before that.

    With a ``loss_scale``, gradients are too large by that factor: they and the norm are divided by it. All ranks must
    call it, and all get the same norm. Exactly one rank counts each element of the model's gradient. So one all-reduce
    over the world is enough, for parameters on any mesh.
    """
    gradients = [parameter.grad for parameter in parameters]
    shards = [_local(gradient) for gradient in gradients]
    counted = [shard for shard, gradient in zip(shards, gradients, strict=True) if _is_counted_here(gradient, mesh)]
    square = get_total_norm(counted).square().to(shards[0].device)  # Of an empty list, the norm is on the CPU.
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
    """Step the optimizer and return the norm of the change of all parameters, the same on all ranks.

    All ranks must call it. It steps one parameter at a time, which gives the same bits as a step of all of them and
    needs a copy of only one. It calls the optimizer once for each parameter. That is too slow for every step: use it on
    steps that are logged.
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
    """Return whether this rank counts its shard: whether it is the first along each axis that has copies of it."""
    assert isinstance(tensor, DTensor)
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    # A parameter whose mesh has no tp axis is whole on every tensor-parallel rank.
    if "tp" not in (tensor.device_mesh.mesh_dim_names or ()) and mesh.index("tp") > 0:
        return False
    copies = [index for index, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate()]
    return not any(copies)
