"""Stand-ins for what a rank would learn from its peers' messages, or from values: neither is there in a dry run."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.pipelining import PipelineStage

from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.moe.experts import Experts, MixtureOfExperts
from holdfast_trainer.parallel.autograd_collectives import exchange_rows
from holdfast_trainer.parallel.mesh import Mesh


def agree_on_static_shapes() -> None:
    """Have all pipeline stages of this process find that all others know their shapes, as ours do.

    torch (from 2.13 on) has the stages vote about it before the first step, and reads the result from a message.
    """

    def result(_stage: PipelineStage, received_result: Tensor | None = None) -> Tensor:
        return torch.tensor([1])

    PipelineStage._warmup_backward_result = result  # type: ignore[method-assign, assignment]


def spread_tokens_evenly(model: Transformer, mesh: Mesh) -> None:
    """Have every expert serve equally many rows, so that nobody need look at what the router chose."""
    group = mesh.group("ep") if mesh.size("ep") > 1 else None
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            module.serve = _EvenExperts(group)


class _EvenExperts:
    """See :attr:`MixtureOfExperts.serve`."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    def __call__(self, experts: Experts, rows: Tensor, counts: Tensor) -> Tensor:
        if self._group is None:
            return self._serve(experts, rows, held=len(counts))
        ranks = self._group.size()
        sizes = _even_parts(len(rows), ranks)
        arrived = exchange_rows(rows, sent=sizes, received=sizes, group=self._group)
        served = self._serve(experts, arrived, held=len(counts) // ranks)
        return exchange_rows(served, sent=sizes, received=sizes, group=self._group)

    @staticmethod
    def _serve(experts: Experts, rows: Tensor, *, held: int) -> Tensor:
        with unset_fake_temporarily():
            counts = torch.tensor(_even_parts(len(rows), held))
        served: Tensor = experts(rows, counts)
        return served


def _even_parts(total: int, parts: int) -> list[int]:
    return [total // parts + (index < total % parts) for index in range(parts)]
