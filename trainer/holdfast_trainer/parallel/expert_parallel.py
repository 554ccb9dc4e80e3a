"""Experts on several ranks: whole experts along ep, parts of each expert along tp.

All-to-all sends rows to the ranks of their experts and back (Lepikhin et al., "GShard", 2020). tp shards the hidden
width of every expert, so the output of a rank is a partial sum. The gradients of everything that it is computed from
are partial sums too, also that of the router.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from holdfast_trainer.model.transformer import Transformer
from holdfast_trainer.moe.experts import Experts, MixtureOfExperts
from holdfast_trainer.parallel.autograd_collectives import exchange_rows
from holdfast_trainer.parallel.mesh import Mesh

_HIDDEN_DIM = {"gate": 1, "up": 1, "output": 2}
"""Dimension of the hidden width in each stacked weight."""


def apply_expert_parallel(model: Transformer, mesh: Mesh) -> None:
    """Shard the experts over ep and tp. Call it before ``fully_shard``. Without ep and tp it changes nothing."""
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            _distribute_weights(module, mesh)
            if mesh.size("ep") > 1:
                module.serve = ExchangedExperts(mesh.group("ep"))
            if mesh.size("tp") > 1:
                module.balance.share = 1 / mesh.size("tp")
                _sum_over_tp(module, mesh)


def _distribute_weights(module: MixtureOfExperts, mesh: Mesh) -> None:
    tensor_parallel = mesh.size("tp") > 1
    if tensor_parallel:
        _distribute(module.router, "weight", mesh.axis("tp"), [Replicate()])
    for name, hidden_dim in _HIDDEN_DIM.items():
        cut: list[Placement] = [Shard(hidden_dim)] if tensor_parallel else []
        if mesh.experts is not None:
            axes = ("ep", "tp") if tensor_parallel else ("ep",)
            _distribute(module.experts, name, mesh.experts[axes], [Shard(0), *cut])
        elif tensor_parallel:
            _distribute(module.experts, name, mesh.axis("tp"), cut)


def _distribute(module: nn.Module, name: str, mesh: DeviceMesh, placements: list[Placement]) -> None:
    # No rank sends the weights to the others: each rank fills in its own part later.
    part = distribute_tensor(module.get_parameter(name), mesh, placements, src_data_rank=None)
    module.register_parameter(name, nn.Parameter(part))


class ExchangedExperts:
    """Sends each row to the rank that holds its expert, and brings the result back."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def __call__(self, experts: Experts, rows: Tensor, counts: Tensor) -> Tensor:
        """Return what ``experts`` make of rows [rows, dim], which are in the order of all experts, ``counts`` each."""
        sent_counts = counts.view(self._group.size(), -1)
        received_counts = torch.empty_like(sent_counts)
        dist.all_to_all_single(received_counts, sent_counts, group=self._group)
        # The only place that waits for the device: all-to-all needs its sizes in host memory.
        sent, received = torch.stack([sent_counts.sum(dim=1), received_counts.sum(dim=1)]).tolist()

        kept = sum(sent)
        arrived = exchange_rows(rows[:kept], sent=sent, received=received, group=self._group)
        order = _by_expert(received_counts, len(arrived))
        served = experts(arrived[order], received_counts.sum(dim=0))[order.argsort()]
        returned = exchange_rows(served, sent=received, received=sent, group=self._group)
        return torch.cat([returned, torch.zeros_like(rows[kept:])])


def _by_expert(counts: Tensor, rows: int) -> Tensor:
    """Return the order that sorts rows by (expert, rank). They come by (rank, expert), ``counts`` of each."""
    ranks, experts = counts.shape
    expert_of_run = torch.arange(experts, device=counts.device).repeat(ranks)
    expert_of_row = expert_of_run.repeat_interleave(counts.flatten(), output_size=rows)
    return expert_of_row.argsort(stable=True)


def _sum_over_tp(module: MixtureOfExperts, mesh: Mesh) -> None:
    """Give the module whole sequences, and sum the outputs of the tensor-parallel ranks."""
    tp_mesh = mesh.axis("tp")
    stream: Placement = Shard(1) if mesh.config.sequence_parallel else Replicate()
    module.register_forward_pre_hook(partial(_gather_stream, tp_mesh, stream))
    module.register_forward_hook(partial(_add_up, tp_mesh, stream))


def _gather_stream(tp_mesh: DeviceMesh, stream: Placement, _module: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    (x,) = inputs
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, tp_mesh, (stream,), run_check=False)
    gathered: Tensor = x.redistribute(placements=(Replicate(),)).to_local(grad_placements=(Partial(),))
    return gathered


def _add_up(tp_mesh: DeviceMesh, stream: Placement, _module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    summed = DTensor.from_local(output, tp_mesh, (Partial(),), run_check=False)
    local: Tensor = summed.redistribute(placements=(stream,)).to_local()
    return local
