"""Collectives through which gradients flow.

Those of torch are private, or gloo emulates them in ways that need a group of all ranks. These two make one public call
in each direction, which both gloo and NCCL have.
"""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


def exchange_rows(rows: Tensor, *, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Send the rows [sum(sent), width] to the ranks in order, ``sent[r]`` of them to rank r. Return those that arrive.

    The result is [sum(received), width], in the order of the ranks. ``received[r]`` is the number from rank r.
    """
    exchanged: Tensor = _ExchangeRows.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return exchanged


def gather_parts(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return every rank's ``part``, stacked in the order of the ranks: [ranks, *part.shape].

    Gradients are summed over the ranks in a fixed order, so that repeated runs agree bit for bit.
    """
    parts: Tensor = _GatherParts.apply(part, group)  # type: ignore[no-untyped-call]
    return parts


class _ExchangeContext(Protocol):
    """Values that forward() keeps for backward()."""

    sent: list[int]
    received: list[int]
    group: dist.ProcessGroup


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _ExchangeContext, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: _ExchangeContext, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    output = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(output, rows.contiguous(), received, sent, group=group)
    return output


class _GatherContext(Protocol):
    """Values that forward() keeps for backward()."""

    group: dist.ProcessGroup


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _GatherContext, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = part.new_empty(group.size(), *part.shape)
        dist.all_gather(list(parts.unbind()), part.contiguous(), group=group)
        return parts

    @staticmethod
    def backward(ctx: _GatherContext, *gradients: Tensor) -> tuple[Tensor, None]:
        # An all-to-all and a sum. It has the same traffic as a reduce-scatter, which gloo only emulates.
        shares = torch.empty_like(gradients[0], memory_format=torch.contiguous_format)
        dist.all_to_all_single(shares, gradients[0].contiguous(), group=ctx.group)
        return shares.sum(dim=0), None
