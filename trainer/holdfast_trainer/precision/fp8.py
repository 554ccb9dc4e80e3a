"""Matrix products of the blocks in fp8, by torchao.

Every tensor is scaled by its own largest element just before it is rounded: dynamic, tensorwise scaling (Micikevicius
et al., "FP8 Formats for Deep Learning", 2022). Weights, gradients and everything else keep their data types.
"""

from functools import partial

import torch
from torch import nn

from holdfast_hooks import ConfigurationError

_ALIGNMENT = 16
"""Number that must divide both dimensions of a matrix for the fp8 kernels."""
_FIRST_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs that have such kernels: Ada."""


def require_fp8(device: torch.device) -> None:
    """Raise ConfigurationError unless ``device`` has matrix products in fp8."""
    if device.type != "cuda":
        raise ConfigurationError(f"precision.fp8 needs a GPU, but this rank runs on {device.type}: unset precision.fp8")
    capability = torch.cuda.get_device_capability(device)
    if capability < _FIRST_CAPABILITY:
        raise ConfigurationError(
            f"precision.fp8 needs a GPU of compute capability 8.9, but this one's is {capability[0]}.{capability[1]}: "
            "unset precision.fp8"
        )


def convert_to_fp8(blocks: nn.Module, *, tp: int = 1, emulate: bool = False) -> None:
    """Replace the linear layers in ``blocks`` whose dimensions fit. Parameters keep their names.

    Call it before tensor parallelism, which then shards the new layers over ``tp`` ranks. The dimensions of the parts
    must be multiples of 16, too. Experts and their router are not linear layers and stay as they are. ``emulate``
    rounds to fp8 and multiplies in fp32, on any device. Raises ConfigurationError if torchao is missing.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise ConfigurationError(
            "precision.fp8 needs the package torchao: install the extra fp8 of holdfast-torch or unset precision.fp8"
        ) from None
    config = Float8LinearConfig(emulate=emulate)
    convert_to_float8_training(blocks, module_filter_fn=partial(_fits, alignment=_ALIGNMENT * tp), config=config)


def _fits(module: nn.Module, _name: str, *, alignment: int) -> bool:
    assert isinstance(module, nn.Linear)
    return module.in_features % alignment == 0 and module.out_features % alignment == 0
