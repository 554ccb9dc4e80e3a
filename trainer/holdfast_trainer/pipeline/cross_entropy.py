"""Cross-entropy, also of logits that are sharded along the vocabulary over tensor-parallel ranks."""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.batches import IGNORED
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.precision.loss_scaling import LossScaler


class MeanLoss:
    """Computes the cross-entropy of a microbatch, as its share of the mean over the tokens of the global batch.

    So the losses and gradients of microbatches and ranks are added up without weights.
    """

    def __init__(self, config: TrainerConfig, mesh: Mesh, scaler: LossScaler | None) -> None:
        self._tokens = config.train.global_batch * config.data.sequence
        self._vocabulary_group = mesh.group("tp") if logits_are_cut(config) else None
        self._scaler = scaler

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Map logits [samples, sequence, (local) vocabulary] and targets [samples, sequence] to a scalar.

        Targets that are IGNORED add nothing. If there is a loss scale, the gradient of the scalar is multiplied by it.
        """
        flat, labels = logits.flatten(0, 1).float(), targets.flatten()
        if self._vocabulary_group is None:
            total = functional.cross_entropy(flat, labels, ignore_index=IGNORED, reduction="sum")
        else:
            total = vocabulary_parallel_cross_entropy(flat, labels, self._vocabulary_group)
        loss = total / self._tokens
        return loss if self._scaler is None else self._scaler.scale_gradient(loss)


def logits_are_cut(config: TrainerConfig) -> bool:
    """Return whether each tensor-parallel rank has only the logits of its part of the vocabulary."""
    return config.parallel.tp > 1 and config.parallel.loss_parallel


def vocabulary_parallel_cross_entropy(logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the cross-entropy of ``logits`` to ``targets``, summed over tokens: the same on all ranks of ``group``.

    Logits are fp32 [tokens, local vocabulary], targets int64 [tokens]; those that are IGNORED add nothing. Each rank of
    ``group`` holds an equal part of the vocabulary, in the order of the ranks. Shoeybi et al., "Megatron-LM", 2019,
    section 3.

    torch's own ``loss_parallel`` is a context that must stay open during the backward pass. Under a pipeline that pass
    belongs to the schedule.
    """
    total: Tensor = _VocabularyParallelCrossEntropy.apply(logits, targets, group)  # type: ignore[no-untyped-call]
    return total


class _CrossEntropyContext(Protocol):
    """Values that forward() keeps for backward()."""

    saved_tensors: tuple[Tensor, Tensor, Tensor]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _VocabularyParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _CrossEntropyContext, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        # Subtracting the largest logit of the whole vocabulary keeps exp() from overflowing.
        largest = logits.amax(dim=-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = logits - largest.unsqueeze(-1)
        # Exactly one rank has the logit of a token's target, and none that of an ignored one. Others add 0 to the sum.
        local_targets = targets - dist.get_rank(group) * logits.shape[-1]
        elsewhere = (local_targets < 0) | (local_targets >= logits.shape[-1])
        local_targets = local_targets.masked_fill(elsewhere, 0)
        chosen = shifted.gather(-1, local_targets.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
        exponentials = shifted.exp_()
        # One all-reduce carries both sums.
        sums = torch.stack([exponentials.sum(dim=-1), chosen])
        dist.all_reduce(sums, group=group)
        normaliser, chosen = sums
        # An infinite normaliser makes all probabilities, and with them the gradient, of an ignored token exactly 0.
        ignored = targets == IGNORED
        normaliser = normaliser.masked_fill(ignored, torch.inf)
        probabilities = exponentials.div_(normaliser.unsqueeze(-1))
        ctx.save_for_backward(probabilities, local_targets, elsewhere)
        total: Tensor = (normaliser.log() - chosen).masked_fill(ignored, 0.0).sum()
        return total

    @staticmethod
    def backward(ctx: _CrossEntropyContext, *gradients: Tensor) -> tuple[Tensor, None, None]:
        # The gradient of log(sum exp(x)) - x[target] is softmax(x) - one_hot(target).
        probabilities, local_targets, elsewhere = ctx.saved_tensors
        is_target = torch.zeros_like(probabilities).scatter_(
            -1, local_targets.unsqueeze(-1), (~elsewhere).to(probabilities.dtype).unsqueeze(-1)
        )
        return (probabilities - is_target) * gradients[0], None, None
