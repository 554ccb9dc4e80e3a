"""How evenly a step used the experts, over the whole model and the global batch."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.moe.balance import collect_expert_statistics
from holdfast_trainer.parallel.mesh import Mesh


@dataclass(frozen=True)
class ExpertStatistics:
    """The numbers of one step, the same on all ranks. None if the model has no experts."""

    balance_loss: Tensor | None
    """Load-balance loss, averaged over blocks and sequences. 1 if all experts get the same number of picks."""
    dropped_tokens: Tensor | None
    """Number of picks that full experts dropped, over all blocks: int64."""


@torch.no_grad()
def expert_statistics(config: TrainerConfig, mesh: Mesh, parts: ModelParts) -> ExpertStatistics:
    """Return what was counted since the last call, without waiting for the device. All ranks must call it."""
    if not config.model.experts:
        return ExpertStatistics(None, None)
    counted = torch.cat([collect_expert_statistics(module) for module in parts.modules]).sum(dim=0)
    dist.all_reduce(counted)
    losses, dropped = counted / mesh.size("tp")
    return ExpertStatistics(losses / (config.train.global_batch * config.model.layers), dropped.long())
