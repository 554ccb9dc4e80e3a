"""The load-balance loss: keeps routers from sending all tokens to a few experts.

Of one sequence it is E sum_e f_e P_e, where f_e is the share of the tokens' picks that expert e got and P_e the
mean of its probability (Fedus et al., "Switch Transformers", 2021, section 2.2, here per sequence): 1 when all E
experts are used alike, up to E / k when every token picks the same k.
"""

from typing import Any

import torch
from torch import Tensor, nn

from holdfast_trainer.config import ModelConfig
from holdfast_trainer.moe.routing import Routing


class BalanceLoss(nn.Module):
    """Adds the gradient of one block's loss where the block's output passes, whichever pipeline stage that is on."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.coefficient = config.balance_coefficient
        self.sequences = 1
        self.loss_scale: Tensor | None = None
        """See :func:`weigh_balance_loss`."""
        self.share = 1.0
        """Of the gradient that falls to this rank: those of ranks that compute the same are added up."""
        self.statistics: Tensor
        self.register_buffer("statistics", torch.zeros(2), persistent=False)

    def forward(self, output: Tensor, routing: Routing, counts: Tensor, dropped: Tensor) -> Tensor:
        """Return ``output`` as it is.

        ``counts`` [samples, experts] are the picks of whole sequences, of which ``routing`` may be a part: the loss of
        the whole is the sum over the parts. ``dropped`` counts what was picked and not served. Both this and the
        loss enter the statistics in the backward pass: it runs once, while recomputation repeats a forward pass.
        """
        if not torch.is_grad_enabled():
            return output
        loss = sum_of_balance_losses(routing, counts)
        weighted = loss * (self.coefficient * self.share / self.sequences)
        if self.loss_scale is not None:
            weighted = weighted * self.loss_scale
        counted = torch.stack([loss.detach(), dropped.to(loss.dtype)])
        injected: Tensor = _Inject.apply(output, weighted, counted, self.statistics)  # type: ignore[no-untyped-call]
        return injected


def sum_of_balance_losses(routing: Routing, counts: Tensor) -> Tensor:
    """Return the sum over the sequences of E sum_e f_e P_e, where P_e sums over the tokens in ``routing`` alone."""
    picks = counts.sum(dim=1, keepdim=True)
    experts, experts_per_token = counts.shape[1], routing.chosen.shape[2]
    shares = counts / picks
    mean_probabilities = routing.probabilities.sum(dim=1) * experts_per_token / picks
    return experts * (shares * mean_probabilities).sum()


def weigh_balance_loss(model: nn.Module, *, sequences: int, loss_scale: Tensor | None = None) -> None:
    """Have the loss enter what is minimised as its mean over the ``sequences`` of the global batch.

    ``loss_scale`` (fp32 scalar) multiplies it; the tensor is kept, so that it can change in place between steps.
    """
    for module in model.modules():
        if isinstance(module, BalanceLoss):
            module.sequences, module.loss_scale = sequences, loss_scale


@torch.no_grad()
def collect_expert_statistics(model: nn.Module) -> Tensor:
    """Return what has been counted since the last call, and start from 0: fp32 [blocks here, 2], on the device.

    The columns are the sum of the sequences' balance losses, and how many of the tokens' picks were dropped. Ranks
    along dp, cp and pp count different things, ranks along tp the same.
    """
    found = [module.statistics for module in model.modules() if isinstance(module, BalanceLoss)]
    counted = torch.stack(found) if found else torch.zeros(0, 2)
    for statistics in found:
        statistics.zero_()
    return counted


class _Inject(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, loss: Tensor, counted: Tensor, statistics: Tensor) -> Tensor:
        ctx.counted, ctx.statistics, ctx.loss_dtype = counted, statistics, loss.dtype
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None, None]:
        ctx.statistics.add_(ctx.counted)
        return gradients[0], gradients[0].new_ones((), dtype=ctx.loss_dtype), None, None
