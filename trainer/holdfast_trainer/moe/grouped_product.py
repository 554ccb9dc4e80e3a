"""The products of all experts in one kernel (grouped GEMM), on devices for which torch has it.

Callers of the kernel must know three things:

* Rows behind the last group are not written. They stay as they were in memory, in the result and in the gradient.
* On some GPUs, the weights of a group without rows get a gradient that is not zero.
* Groups must start at multiples of 16 bytes.
"""

import torch
from torch import Tensor
from torch.nn import functional

_ALIGNMENT = 8
"""Number of bf16 elements in 16 bytes."""


def can_group(rows: Tensor, weight: Tensor) -> bool:
    """Return whether the kernel takes these rows and a stack of weights [experts, width, width]."""
    aligned = all(width % _ALIGNMENT == 0 for width in weight.shape[1:])
    return rows.is_cuda and rows.dtype == torch.bfloat16 and aligned


def grouped_swiglu(rows: Tensor, counts: Tensor, gate: Tensor, up: Tensor, output: Tensor) -> Tensor:
    """Map the first ``counts[0]`` rows with the first expert, and so on. Map the rest to zeros.

    Weights are [experts, output width, input width]. Does not wait for the device.
    """
    slots, ends = _aligned_slots(counts, len(rows))
    belongs = (torch.arange(len(rows), device=rows.device) < counts.sum()).unsqueeze(1)
    size = len(rows) + _ALIGNMENT * (len(counts) + 1)
    x = rows.new_zeros(size, rows.shape[1]).index_copy(0, slots, rows.where(belongs, 0))
    hidden = functional.silu(_product(x, gate, ends)) * _product(x, up, ends)
    return _product(hidden, output, ends)[slots].where(belongs, 0)


def _product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    product: Tensor = functional.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    return product


def _aligned_slots(counts: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the place of each row in the padded rows, and the ends of the padded groups: int32.

    No padded group is empty. Rows that belong to no group are placed behind the last group.
    """
    padded = counts.add(_ALIGNMENT - 1).div(_ALIGNMENT, rounding_mode="floor").clamp(min=1) * _ALIGNMENT
    filled_ends, ends = counts.cumsum(0), padded.cumsum(0)
    shifts = functional.pad(ends - filled_ends, (1, 0))
    # The padding of earlier groups shifts a group. All of the padding shifts the rows that belong to no group.
    number = torch.arange(rows, device=counts.device)
    return number + shifts[torch.searchsorted(filled_ends, number, right=True)], ends.int()
