"""Shapes and types of one microbatch at the borders of a stage on this rank, as tensors without memory."""

import torch
from torch import Tensor

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.pipeline.cross_entropy import logits_are_cut
from holdfast_trainer.precision.compute_dtype import compute_dtype


def like_tokens(config: TrainerConfig) -> Tensor:
    """Return the input of the first stage: int64 [samples, local sequence]."""
    return torch.empty(config.microbatch_samples, _sequence(config), dtype=torch.int64, device="meta")


def like_stream(config: TrainerConfig) -> Tensor:
    """Return the activations between two stages: [samples, local sequence, dim].

    With sequence parallelism each tp rank has its part of the sequence.
    """
    parallel = config.parallel
    sequence = _sequence(config) // (parallel.tp if parallel.sequence_parallel else 1)
    return torch.empty(
        config.microbatch_samples,
        sequence,
        config.model.dim,
        dtype=compute_dtype(config.precision),
        device="meta",
        requires_grad=True,
    )


def like_logits(config: TrainerConfig) -> Tensor:
    """Return the output of the last stage: fp32 [samples, local sequence, (local) vocabulary]."""
    vocabulary = config.model.vocabulary // (config.parallel.tp if logits_are_cut(config) else 1)
    return torch.empty(config.microbatch_samples, _sequence(config), vocabulary, device="meta", requires_grad=True)


def _sequence(config: TrainerConfig) -> int:
    return config.data.sequence // config.parallel.cp
