"""The router, which picks the experts of a token, and the capacity of an expert.

Everything is decided per sequence, so that the result does not depend on the rank or the microbatch of a sequence.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

from holdfast_trainer.config_sections import ModelConfig


@dataclass(frozen=True)
class Routing:
    """The router's decision about tokens [samples, sequence]."""

    probabilities: Tensor
    """Probability of each expert: fp32 [samples, sequence, experts]."""
    chosen: Tensor
    """Most likely experts, the most likely first: int64 [samples, sequence, experts_per_token]."""
    weights: Tensor
    """Probabilities of ``chosen``, scaled to a sum of 1: fp32, in its shape."""

    @property
    def picked(self) -> Tensor:
        """Picks: 1 if the token picked the expert, else 0. int32 [samples, sequence, experts]."""
        empty = torch.zeros_like(self.probabilities, dtype=torch.int32)
        return empty.scatter_(2, self.chosen, 1)


class Router(nn.Module):
    """Picks the k best experts by a linear score and softmax (Jiang et al., "Mixtral of Experts", 2024)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.experts_per_token = config.experts_per_token
        self.weight = nn.Parameter(torch.empty(config.experts, config.dim))

    def forward(self, x: Tensor) -> Routing:
        """Route tokens [samples, sequence, dim]."""
        scores = functional.linear(x, local_weight(self.weight))
        probabilities = scores.float().softmax(dim=-1)
        best, chosen = probabilities.topk(self.experts_per_token, dim=-1)
        return Routing(probabilities, chosen, best / best.sum(dim=-1, keepdim=True))


def local_weight(weight: Tensor) -> Tensor:
    """Return this rank's part of ``weight``, for the computation of a partial sum.

    If all ranks have the whole weight, its gradient is then a partial sum, too.
    """
    if not isinstance(weight, DTensor):
        return weight
    gradients = [Partial() if placement.is_replicate() else placement for placement in weight.placements]
    local: Tensor = weight.to_local(grad_placements=gradients)
    return local


class Tally(Protocol):
    """Counts the picks of the tokens on this rank, over the whole sequence."""

    parts: int
    """Number of ranks that share a sequence."""

    def __call__(self, picked: Tensor) -> tuple[Tensor, Tensor]:
        """Return how often earlier tokens picked the expert, and the counts of whole sequences [samples, experts].

        ``picked`` holds 0 and 1, [samples, sequence, experts]. The first result has the same shape.
        """


class WholeSequence:
    """Counts picks where every rank has whole sequences."""

    parts = 1

    def __call__(self, picked: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Tally`."""
        return earlier_picks(picked), picked.sum(dim=1)


def earlier_picks(picked: Tensor) -> Tensor:
    """Return the sum of the elements of ``picked`` before each element, along the next to last dimension."""
    return picked.cumsum(dim=-2, dtype=torch.int32) - picked


def within_capacity(routing: Routing, earlier: Tensor, capacity: int | None) -> Tensor:
    """Return whether the expert takes the token: bool, in the shape of ``routing.chosen``.

    An expert takes the first ``capacity`` tokens of a sequence that picked it (Lepikhin et al., "GShard", 2020).
    """
    if capacity is None:
        return torch.ones_like(routing.chosen, dtype=torch.bool)
    return earlier.gather(2, routing.chosen) < capacity


def expert_capacity(config: ModelConfig, *, sequence: int) -> int | None:
    """Return the number of tokens that an expert takes from a sequence of this length; None: all."""
    if config.capacity_factor == 0:
        return None
    return math.ceil(config.capacity_factor * config.experts_per_token * sequence / config.experts)
