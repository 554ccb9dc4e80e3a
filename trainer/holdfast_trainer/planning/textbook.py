"""The counts that papers give, beside which the plan of this runtime can be read."""

from typing import Literal

_ADAM_BYTES = 12
"""fp32 master weight and two moments of each parameter."""


def zero_bytes(parameters: float, *, stage: int, ranks: int) -> float:
    """Return the bytes of model state of one of ``ranks`` data-parallel ranks, mixed precision with Adam.

    16-bit weights and gradients, 2 bytes each, and 12 of the optimizer, of which each ZeRO ``stage`` shards one more
    from the end (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020,
    figure 1).
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
    """Return the bytes of activations that a block of GPT keeps, 16-bit and with dropout.

    s b h (34 + 5 a s / h) with s ``sequence``, b ``samples``, h ``dim``, a ``heads``; a fused attention leaves out the
    scores as "scores" does (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
    table 2).
    """
    if recomputed == "all":
        return 2.0 * sequence * samples * dim
    whole, cut = (0, 34) if sequence_parallel else (10, 24)
    scores = 5 * heads * sequence / dim if recomputed == "nothing" else 0
    return sequence * samples * dim * (whole + (cut + scores) / tp)
