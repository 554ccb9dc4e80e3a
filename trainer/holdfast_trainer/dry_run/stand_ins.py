"""Stand-ins for facts that a rank learns from messages of its peers or from values. A dry run has neither."""

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
    """Make the pipeline stages of this process believe that all stages know their shapes, as ours do.

    From 2.13 on, the stages vote about this before the first step, and torch reads the result from a message.
    """

    def result(_stage: PipelineStage, received_result: Tensor | None = None) -> Tensor:  # noqa: ARG001 - torch's name
        return torch.tensor([1])

    PipelineStage._warmup_backward_result = result  # type: ignore[method-assign, assignment]


def spread_tokens_evenly(model: Transformer, mesh: Mesh) -> None:
    """Make every expert serve the same number of rows, so that the choices of the router need not be read."""
    group = mesh.group("ep") if mesh.size("ep") > 1 else None
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            module.serve = _EvenExperts(group)


class _EvenExperts:
    """Stands in for :attr:`MixtureOfExperts.serve`: each expert gets an even part of the rows."""

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
        # The experts read the counts as numbers, so this tensor must have values.
        with unset_fake_temporarily():
            counts = torch.tensor(_even_parts(len(rows), held))
        served: Tensor = experts(rows, counts)
        return served


def _even_parts(total: int, parts: int) -> list[int]:
    return [total // parts + (index < total % parts) for index in range(parts)]
