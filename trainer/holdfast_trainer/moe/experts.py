"""Mixture of experts: feed-forward parts, of which a router picks a few for each token."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast_trainer.config import ModelConfig
from holdfast_trainer.moe.balance import BalanceLoss
from holdfast_trainer.moe.grouped_product import can_group, grouped_swiglu
from holdfast_trainer.moe.routing import (
    Router,
    Routing,
    Tally,
    WholeSequence,
    expert_capacity,
    local_weight,
    within_capacity,
)


class Experts(nn.Module):
    """SwiGLU of every expert on this rank. The weights are stacked: [experts, output width, input width]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(config.experts, config.hidden, config.dim))
        self.up = nn.Parameter(torch.empty(config.experts, config.hidden, config.dim))
        self.output = nn.Parameter(torch.empty(config.experts, config.dim, config.hidden))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Map the first ``counts[0]`` rows [rows, dim] with the first expert, and so on. Map the rest to zeros."""
        gate, up, output = local_weight(self.gate), local_weight(self.up), local_weight(self.output)
        if can_group(rows, gate):
            return grouped_swiglu(rows, counts, gate, up, output)
        sizes: list[int] = counts.tolist()
        *taken, rest = torch.split(rows, [*sizes, len(rows) - sum(sizes)])
        # Experts without a row compute too, so that every weight gets a gradient.
        served = [swiglu(*arguments) for arguments in zip(taken, gate, up, output, strict=True)]
        return torch.cat([*served, torch.zeros_like(rest)])


def swiglu(x: Tensor, gate: Tensor, up: Tensor, output: Tensor) -> Tensor:
    """Return the SwiGLU of rows (Shazeer, "GLU Variants Improve Transformer", 2020)."""
    hidden = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
    return functional.linear(hidden, output)


class MixtureOfExperts(nn.Module):
    """Maps each token to the weighted sum of the results of its experts. An expert that is full adds nothing."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config)
        self.experts = Experts(config)
        self.balance = BalanceLoss(config)
        self.tally: Tally = WholeSequence()
        """Counter of the picks in a sequence. Context parallelism sets another one."""
        self.serve: Callable[[Experts, Tensor, Tensor], Tensor] = serve_here
        """Function that calls the experts on rows and counts. Expert parallelism sets one that exchanges rows."""

    # The values of the rows decide where they go. A compiled graph would break at each such place.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor) -> Tensor:
        """Map [samples, sequence, dim] to the same shape."""
        routing = self.router(x)
        earlier, counts = self.tally(routing.picked)
        capacity = expert_capacity(self.config, sequence=x.shape[1] * self.tally.parts)
        kept = within_capacity(routing, earlier, capacity)
        mixed: Tensor = self.balance(self._mix(x, routing, kept), routing, counts, (~kept).sum())
        return mixed

    def _mix(self, x: Tensor, routing: Routing, kept: Tensor) -> Tensor:
        experts, experts_per_token = self.config.experts, self.config.experts_per_token
        # Dropped rows sort last, as if there were one more expert for them.
        expert_of_row = torch.where(kept, routing.chosen, experts).flatten()
        in_order, order = expert_of_row.sort(stable=True)
        counts = rows_per_expert(in_order, experts)
        rows = x.unsqueeze(2).expand(-1, -1, experts_per_token, -1).flatten(0, 2)
        served = self.serve(self.experts, rows[order], counts)[order.argsort()]
        weights = (routing.weights * kept).to(x.dtype)
        return (served.view(*routing.chosen.shape, -1) * weights.unsqueeze(-1)).sum(dim=2)


def serve_here(experts: Experts, rows: Tensor, counts: Tensor) -> Tensor:
    """Return the result of ``experts``, all of which are on this rank."""
    mapped: Tensor = experts(rows, counts)
    return mapped


def rows_per_expert(experts_in_order: Tensor, experts: int) -> Tensor:
    """Return how often each of ``experts`` occurs in a sorted tensor: int64. Does not wait for the device."""
    numbers = torch.arange(experts, device=experts_in_order.device)
    ends = torch.searchsorted(experts_in_order, numbers, right=True)
    return ends.diff(prepend=ends.new_zeros(1))
