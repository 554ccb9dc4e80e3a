"""AdamW, its learning rate over the run, and clipping by the norm of the whole model's gradient."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.utils import get_total_norm
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from holdfast_trainer.config import OptimizerConfig
from holdfast_trainer.mesh import Mesh

_CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_: a gradient of zeros is not divided by zero."""


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> AdamW:
    """Return AdamW over this rank's parameters; only matrices are decayed."""
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1]},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def make_scheduler(optimizer: AdamW, config: OptimizerConfig, *, steps: int) -> LambdaLR:
    """Return the schedule; step it once after each optimizer step."""
    factor = partial(learning_rate_factor, steps=steps, warmup_steps=config.warmup_steps, floor=config.floor)
    return LambdaLR(optimizer, factor)


def learning_rate_factor(step: int, *, steps: int, warmup_steps: int, floor: float) -> float:
    """Return the learning rate of ``step`` over the highest: a linear rise, then half a cosine down to ``floor``."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, steps - 1 - warmup_steps))
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


@torch.no_grad()
def clip_gradient(parameters: Iterable[nn.Parameter], mesh: Mesh, *, clip_norm: float) -> Tensor:
    """Scale the gradient of the whole model down to ``clip_norm`` if it is larger; return its norm before.

    All ranks must call it; all get the same norm. One all-reduce over the world does, since every element of
    the model's gradient is counted by exactly one rank.
    """
    shards: list[Tensor] = []
    counted: list[Tensor] = []
    for parameter in parameters:
        gradient = parameter.grad
        assert isinstance(gradient, DTensor)
        shards.append(gradient.to_local())
        if _is_counted_here(gradient, mesh):
            counted.append(gradient.to_local())
    square = get_total_norm(counted).square()
    dist.all_reduce(square)
    norm = square.sqrt()
    factor = (clip_norm / (norm + _CLIP_EPSILON)).clamp(max=1.0)
    for shard in shards:
        shard.mul_(factor)
    return norm


def _is_counted_here(gradient: DTensor, mesh: Mesh) -> bool:
    """Whether this rank is the one that counts its shard: the first along each axis with copies of it."""
    placements = dict(zip(gradient.device_mesh.mesh_dim_names or (), gradient.placements, strict=True))
    copied = [axis for axis in ("dp", "tp") if placements.get(axis, Replicate()).is_replicate()]
    return all(mesh.index(axis) == 0 for axis in copied)
