"""The formulas of papers, for comparison with the plan of this trainer."""

from typing import Literal

_ADAM_BYTES = 12
"""Bytes of the fp32 master weight and the two moments of a parameter."""


def zero_bytes(parameters: float, *, stage: int, ranks: int) -> float:
    """Return the bytes of model state on one of ``ranks`` data-parallel ranks, in mixed precision with Adam.

    A parameter has 2 bytes of weight, 2 of gradient and 12 of optimizer state. Stage 1 shards the last of these,
    stage 2 the last two, stage 3 all three (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
    Parameter Models", 2020, figure 1).
    """
    sharded_from = {"optimizer": 1, "gradients": 2, "weights": 3}
    sizes = {"optimizer": _ADAM_BYTES, "gradients": 2, "weights": 2}
    return parameters * sum(size / (ranks if stage >= sharded_from[part] else 1) for part, size in sizes.items())


def gpt_block_bytes(
    *,
    sequence: int,
    samples: float,
    dim: int,
    heads: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    recomputed: Literal["nothing", "scores", "all"] = "nothing",
) -> float:
    """Return the bytes of activations that a block of GPT keeps, with 16-bit numbers and dropout.

    It is s b h (34 + 5 a s / h), with s ``sequence``, b ``samples``, h ``dim`` and a ``heads``. A fused attention keeps
    no scores, as if they were ``recomputed`` (Korthikanti et al., "Reducing Activation Recomputation in Large
    Transformer Models", 2022, table 2).
    """
    if recomputed == "all":
        return 2.0 * sequence * samples * dim
    whole, cut = (0, 34) if sequence_parallel else (10, 24)
    scores = 5 * heads * sequence / dim if recomputed == "nothing" else 0
    return sequence * samples * dim * (whole + (cut + scores) / tp)
