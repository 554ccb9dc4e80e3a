"""Mixture of experts: feed-forward parts, of which a router picks a few for each token."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.moe.balance import BalanceLoss
from holdfast_trainer.moe.routing import (
    Router,
    Routing,
    Tally,
    WholeSequence,
    expert_capacity,
    local_weight,
    within_capacity,
)

# The products of all experts in one kernel (grouped GEMM), on devices for which torch has it.
#
# Callers of the kernel must know three things:
#
# * Rows behind the last group are not written. They stay as they were in memory, in the result and in the gradient.
# * On some GPUs, the weights of a group without rows get a gradient that is not zero.
# * Groups must start at multiples of 16 bytes.

_ALIGNMENT = 8
"""Number of bf16 elements in 16 bytes."""


def can_group(rows: Tensor, weight: Tensor) -> bool:
    """Return whether the kernel takes these rows and a stack of weights [experts, width, width]."""
    aligned = all(width % _ALIGNMENT == 0 for width in weight.shape[1:])
    return rows.is_cuda and rows.dtype == torch.bfloat16 and aligned


def grouped_swiglu(rows: Tensor, counts: Tensor, gate: Tensor, up: Tensor, output: Tensor) -> Tensor:
    """Map the first ``counts[0]`` rows with the first expert, and so on. Map the rest to zeros.

    Weights are [experts, output width, input width]. Does not wait for the device.
    """
    slots, ends = _aligned_slots(counts, len(rows))
    belongs = (torch.arange(len(rows), device=rows.device) < counts.sum()).unsqueeze(1)
    size = len(rows) + _ALIGNMENT * (len(counts) + 1)
    x = rows.new_zeros(size, rows.shape[1]).index_copy(0, slots, rows.where(belongs, 0))
    hidden = functional.silu(_product(x, gate, ends)) * _product(x, up, ends)
    return _product(hidden, output, ends)[slots].where(belongs, 0)


def _product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    product: Tensor = functional.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    return product


def _aligned_slots(counts: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the place of each row in the padded rows, and the ends of the padded groups: int32.

    No padded group is empty. Rows that belong to no group are placed behind the last group.
    """
    padded = counts.add(_ALIGNMENT - 1).div(_ALIGNMENT, rounding_mode="floor").clamp(min=1) * _ALIGNMENT
    filled_ends, ends = counts.cumsum(0), padded.cumsum(0)
    shifts = functional.pad(ends - filled_ends, (1, 0))
    # The padding of earlier groups shifts a group. All of the padding shifts the rows that belong to no group.
    number = torch.arange(rows, device=counts.device)
    return number + shifts[torch.searchsorted(filled_ends, number, right=True)], ends.int()


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
