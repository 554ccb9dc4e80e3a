"""AdamW or SGD, and the learning rate over the run."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from holdfast_trainer.config_sections import OptimizerConfig
from holdfast_trainer.precision.skipped_step import SkippingSGD


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """Return the optimizer of ``parameters``. Only matrices have weight decay."""
    everything = list(parameters)
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in everything if parameter.ndim > 1]},
        {"params": [parameter for parameter in everything if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        return SkippingSGD(
            groups,
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    return AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def make_scheduler(optimizer: Optimizer, config: OptimizerConfig, *, steps: int) -> LambdaLR:
    """Return the schedule of the learning rate. Step it once after each optimizer step."""
    factor = partial(learning_rate_factor, steps=steps, warmup_steps=config.warmup_steps, floor=config.floor)
    return LambdaLR(optimizer, factor)


def learning_rate_factor(step: int, *, steps: int, warmup_steps: int, floor: float) -> float:
    """Return the learning rate of ``step`` as a fraction of the highest one.

    It rises linearly over ``warmup_steps``, and then falls along half a cosine to ``floor``.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, steps - 1 - warmup_steps))
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
