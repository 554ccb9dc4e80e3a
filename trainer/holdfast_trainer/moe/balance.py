"""The load-balance loss, which keeps routers from sending all tokens to a few experts.

For one sequence it is E sum_e f_e P_e (Fedus et al., "Switch Transformers", 2021, section 2.2; here per sequence).
f_e is the share of the tokens' picks that expert e got, and P_e the mean of its probability. The loss is 1 if all E
experts get the same number of picks. It is up to E / k if every token picks the same k.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.moe.routing import Routing


class BalanceLoss(nn.Module):
    """Adds the gradient of one block's loss at the block's output, so that no pipeline stage carries the loss."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.coefficient = config.balance_coefficient
        self.sequences = 1
        self.loss_scale: Tensor | None = None
        """Factor on the loss: see :func:`weigh_balance_loss`."""
        self.share = 1.0
        """Share of the gradient that this rank adds. The gradients of ranks that compute the same are summed."""
        self.statistics: Tensor
        self.register_buffer("statistics", torch.zeros(2), persistent=False)

    def forward(self, output: Tensor, routing: Routing, counts: Tensor, dropped: Tensor) -> Tensor:
        """Return ``output`` unchanged. Its backward pass adds the gradient of the loss.

        ``counts`` [samples, experts] are the picks of whole sequences. ``routing`` may be that of a part of them: the
        loss of the whole is the sum over the parts. ``dropped`` is the number of picks that were not served. It and the
        loss enter the statistics in the backward pass, which runs once. Recomputation repeats a forward pass.
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
    """Return E sum_e f_e P_e, summed over the sequences. P_e sums over the tokens in ``routing`` alone."""
    picks = counts.sum(dim=1, keepdim=True)
    experts, experts_per_token = counts.shape[1], routing.chosen.shape[2]
    shares = counts / picks
    mean_probabilities = routing.probabilities.sum(dim=1) * experts_per_token / picks
    return experts * (shares * mean_probabilities).sum()


def weigh_balance_loss(model: nn.Module, *, sequences: int, loss_scale: Tensor | None = None) -> None:
    """Let each block add the mean of its loss over the ``sequences`` of the global batch to the total loss.

    ``loss_scale`` (fp32 scalar) multiplies it. The modules keep the tensor, which may change in place between steps.
    """
    for module in model.modules():
        if isinstance(module, BalanceLoss):
            module.sequences, module.loss_scale = sequences, loss_scale


@torch.no_grad()
def collect_expert_statistics(model: nn.Module) -> Tensor:
    """Return the statistics since the last call and reset them: fp32 [blocks on this rank, 2], on the device.

    The columns are the sum of the balance losses of the sequences, and the number of dropped picks. Ranks along dp, cp
    and pp count different tokens or blocks. Ranks along tp count the same.
    """
    found = [module.statistics for module in model.modules() if isinstance(module, BalanceLoss)]
    counted = torch.stack(found) if found else torch.zeros(0, 2)
    for statistics in found:
        statistics.zero_()
    return counted


class _InjectContext(Protocol):
    """Values that forward() keeps for backward()."""

    counted: Tensor
    statistics: Tensor
    loss_dtype: torch.dtype


class _Inject(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _InjectContext, output: Tensor, loss: Tensor, counted: Tensor, statistics: Tensor) -> Tensor:
        ctx.counted, ctx.statistics, ctx.loss_dtype = counted, statistics, loss.dtype
        return output.view_as(output)

    @staticmethod
    def backward(ctx: _InjectContext, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        ctx.statistics.add_(ctx.counted)
        return gradients[0], gradients[0].new_ones((), dtype=ctx.loss_dtype), None, None
