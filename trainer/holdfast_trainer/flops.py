"""MFU: the floating point operations that the model needs, as a share of what the device could do in that time.

The count follows Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B. It holds what the
definition of the model needs. Operations that activation checkpointing repeats do not count.
"""

import re
from dataclasses import dataclass

from holdfast_trainer.config_sections import ModelConfig, PrecisionConfig


def flops_per_token(config: ModelConfig, *, sequence: int) -> float:
    """Return the operations of one token's forward and backward pass through the whole model: 6 N + 12 L H Q T.

    N is the number of matrix elements that serve a token. Of the experts, only those that the router picks count. The
    embedding (a look-up) and the norms do not. L is the number of layers, H of heads, Q the width of a head, and T the
    length of the ``sequence``. Attention counts as if it were not causal, as in PaLM and Megatron-LM.
    """
    head_dim = config.head_width
    attention = 12 * config.layers * config.heads * head_dim * sequence
    return float(6 * active_matrix_elements(config) + attention)


def active_matrix_elements(config: ModelConfig) -> int:
    """Return N of :func:`flops_per_token`."""
    head_dim = config.head_width
    attention = config.dim * head_dim * 2 * (config.heads + config.kv_heads)
    feed_forward = 3 * config.dim * config.hidden
    router = 0
    if config.experts:
        feed_forward *= config.experts_per_token
        router = config.dim * config.experts
    return config.layers * (attention + feed_forward + router) + config.dim * config.vocabulary


def mfu(tokens_per_s: float, *, flops_per_token: float, peak_flops_per_s: float) -> float:
    """Return the model's operations per second as a share of the peak, from 0 to 1.

    ``tokens_per_s`` and ``peak_flops_per_s`` are sums over all ranks.
    """
    return tokens_per_s * flops_per_token / peak_flops_per_s


def peak_flops_per_s(device_name: str, config: PrecisionConfig) -> float | None:
    """Return the peak of one device in the data type of the blocks' products; ``device_name`` is torch's name of it.

    None if the device, or its peak in that type, is not known. A guess would make MFU meaningless.
    """
    dtype = "fp8" if config.fp8 else config.compute
    for name, peaks in _PEAKS.items():
        if re.fullmatch(f"(NVIDIA )?{name}", device_name):
            tera: float | None = getattr(peaks, dtype)
            return None if tera is None else tera * 1e12
    return None


@dataclass(frozen=True)
class _Peaks:
    """Dense products (no sparsity), in 10^12 operations per second. None: the device has no unit for them."""

    fp32: float
    fp16: float
    bf16: float | None
    fp8: float | None = None


_HOPPER_SXM = _Peaks(fp32=67, fp16=989.5, bf16=989.5, fp8=1979)
_HOPPER_NVL = _Peaks(fp32=60, fp16=835.5, bf16=835.5, fp8=1670.5)

# The figures are from NVIDIA's data sheets, halved where a sheet counts sparsity. Those of the GeForce are from the Ada
# white paper, with accumulation in fp32. fp32 is the figure of the CUDA cores, because torch does not round fp32
# products to TF32 by default. A name must match as a whole: a slice of a GPU (MIG) or a laptop's GPU has another peak.
_PEAKS = {
    "B200": _Peaks(fp32=75, fp16=2250, bf16=2250, fp8=4500),
    "H200": _HOPPER_SXM,
    "H200 NVL": _HOPPER_NVL,
    "H100 80GB HBM3": _HOPPER_SXM,
    "H100 NVL": _HOPPER_NVL,
    "H100 PCIe": _Peaks(fp32=51, fp16=756, bf16=756, fp8=1513),
    r"A100[- ](SXM4|PCIE|80GB)[- ](\d+GB|PCIe)": _Peaks(fp32=19.5, fp16=312, bf16=312),
    "L40S": _Peaks(fp32=91.6, fp16=362, bf16=362, fp8=733),
    "L4": _Peaks(fp32=30.3, fp16=121, bf16=121, fp8=242.5),
    "GeForce RTX 4090": _Peaks(fp32=82.6, fp16=165.2, bf16=165.2, fp8=330.3),
    r"Tesla V100-SXM\d-\d+GB": _Peaks(fp32=15.7, fp16=125, bf16=None),
    r"Tesla V100-PCIE-\d+GB": _Peaks(fp32=14, fp16=112, bf16=None),
}
