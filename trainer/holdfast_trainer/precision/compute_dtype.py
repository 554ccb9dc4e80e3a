"""Data types of a step: fp32 for what is stored and summed, a smaller type for the computation if set."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from holdfast_trainer.config_sections import PrecisionConfig

_COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def compute_dtype(config: PrecisionConfig) -> torch.dtype:
    """Return the data type of activations, which is also that of the messages between pipeline stages."""
    return _COMPUTE_DTYPES[config.compute]


def mixed_precision_policy(config: PrecisionConfig, *, returns_logits: bool = False) -> MixedPrecisionPolicy:
    """Return the policy for ``fully_shard``, at every ZeRO stage, of a block or of the root of a model part.

    The sharded parameters and the optimizer's state stay fp32. Gradients are reduced and accumulated in fp32. Norms
    need no policy of their own: torch computes them in fp32 internally. A model part that ``returns_logits`` returns
    them in fp32, so that the loss is computed in fp32.
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
