"""Data types of a step: fp32 where values are kept and added up, a smaller one where they are computed with."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from holdfast_trainer.config import PrecisionConfig

_COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def compute_dtype(config: PrecisionConfig) -> torch.dtype:
    """Return the type of activations, and so of what one pipeline stage sends to the next."""
    return _COMPUTE_DTYPES[config.compute]


def mixed_precision_policy(config: PrecisionConfig, *, returns_logits: bool = False) -> MixedPrecisionPolicy:
    """Return what ``fully_shard`` is told, at every ZeRO stage: of a block, or of the root of a model part.

    The sharded parameters stay fp32, and with them the optimizer's state; gradients are reduced and accumulated
    in fp32. Norms need no policy of their own, since torch computes them in fp32 inside. A model part that
    ``returns_logits`` returns them in fp32, so that the loss is computed in it.
    """
    if config.compute == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=compute_dtype(config),
        reduce_dtype=torch.float32,
        output_dtype=torch.float32 if returns_logits else None,
        # The embedding already returns this type; a cast here would only round the rotary table.
        cast_forward_inputs=False,
    )
