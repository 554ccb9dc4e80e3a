"""Collectives that gradients flow through.

torch's own are private, or emulated on gloo in ways that need a group of all ranks. These two use one public
call each way, which gloo and NCCL both have.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def exchange_rows(rows: Tensor, *, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Send ``sent[r]`` of the rows [sum(sent), width] to each rank r, in order; return those that came, by rank.

    ``received[r]`` says how many come from rank r.
    """
    exchanged: Tensor = _ExchangeRows.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return exchanged


def gather_parts(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return every rank's ``part``, stacked in the order of ranks: [ranks, *part.shape].

    Gradients are added up over the ranks in a fixed order.
    """
    parts: Tensor = _GatherParts.apply(part, group)  # type: ignore[no-untyped-call]
    return parts


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        return _all_to_all(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    output = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(output, rows.contiguous(), received, sent, group=group)
    return output


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = part.new_empty(group.size(), *part.shape)
        dist.all_gather(list(parts.unbind()), part.contiguous(), group=group)
        return parts

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        # As much traffic as a reduce-scatter, which gloo only emulates.
        shares = torch.empty_like(gradients[0], memory_format=torch.contiguous_format)
        dist.all_to_all_single(shares, gradients[0].contiguous(), group=ctx.group)
        return shares.sum(dim=0), None
