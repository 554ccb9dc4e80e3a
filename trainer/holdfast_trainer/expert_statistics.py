"""How evenly experts are used, over the whole model and the global batch: what is reported of a step."""

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
    """Of one step, the same on all ranks; None if the model has no experts."""

    balance_loss: Tensor | None
    """Mean over blocks and sequences of the load-balance loss: 1 if all experts are used alike."""
    dropped_tokens: Tensor | None
    """How many picks of an expert were dropped, over all blocks, because it was full: int64."""


@torch.no_grad()
def expert_statistics(config: TrainerConfig, mesh: Mesh, parts: ModelParts) -> ExpertStatistics:
    """Return what was counted since the last call. All ranks must call it; nothing waits for the device."""
    if not config.model.experts:
        return ExpertStatistics(None, None)
    counted = torch.cat([collect_expert_statistics(module) for module in parts.modules]).sum(dim=0)
    dist.all_reduce(counted)
    losses, dropped = counted / mesh.size("tp")
    return ExpertStatistics(losses / (config.train.global_batch * config.model.layers), dropped.long())
