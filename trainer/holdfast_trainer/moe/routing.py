"""Which experts serve a token: the router, and what an expert takes of one sequence.

Everything is decided per sequence, so that it does not depend on which rank or microbatch a sequence is in.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

from holdfast_trainer.config import ModelConfig


@dataclass(frozen=True)
class Routing:
    """What the router says about tokens [samples, sequence]."""

    probabilities: Tensor
    """fp32 [samples, sequence, experts]."""
    chosen: Tensor
    """int64 [samples, sequence, experts_per_token]: the likeliest experts, likeliest first."""
    weights: Tensor
    """fp32, of the shape of ``chosen``: their probabilities, scaled to a sum of 1."""

    @property
    def picked(self) -> Tensor:
        """int32 [samples, sequence, experts]: 1 where the expert is one of the token's, 0 elsewhere."""
        empty = torch.zeros_like(self.probabilities, dtype=torch.int32)
        return empty.scatter_(2, self.chosen, 1)


class Router(nn.Module):
    """A linear score per expert, softmax, and the k best of it (Jiang et al., "Mixtral of Experts", 2024)."""

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
    """Return this rank's part of ``weight``, to compute a partial sum of a result with.

    The gradient of a weight that all ranks have is then a partial sum as well.
    """
    if not isinstance(weight, DTensor):
        return weight
    gradients = [Partial() if placement.is_replicate() else placement for placement in weight.placements]
    local: Tensor = weight.to_local(grad_placements=gradients)
    return local


class Tally(Protocol):
    """Counts, over the whole sequence, what the tokens that this rank has of it picked."""

    parts: int
    """Ranks that share a sequence."""

    def __call__(self, picked: Tensor) -> tuple[Tensor, Tensor]:
        """Take picks of 0 and 1 [samples, sequence, experts].

        Return, of the same shape, how often tokens before this one picked the expert, and the counts of the
        whole sequences [samples, experts].
        """


class WholeSequence:
    """Every rank has whole sequences."""

    parts = 1

    def __call__(self, picked: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Tally`."""
        return earlier_picks(picked), picked.sum(dim=1)


def earlier_picks(picked: Tensor) -> Tensor:
    """Return the sums of ``picked`` along its next to last dimension, without the element itself."""
    return picked.cumsum(dim=-2, dtype=torch.int32) - picked


def within_capacity(routing: Routing, earlier: Tensor, capacity: int | None) -> Tensor:
    """Return, in the shape of ``routing.chosen``, whether the expert takes the token: bool.

    An expert takes the first ``capacity`` tokens of a sequence that picked it (Lepikhin et al., "GShard", 2020).
    """
    if capacity is None:
        return torch.ones_like(routing.chosen, dtype=torch.bool)
    return earlier.gather(2, routing.chosen) < capacity


def expert_capacity(config: ModelConfig, *, sequence: int) -> int | None:
    """Return how many tokens of a sequence of this length an expert takes; None: all."""
    if config.capacity_factor == 0:
        return None
    return math.ceil(config.capacity_factor * config.experts_per_token * sequence / config.experts)
