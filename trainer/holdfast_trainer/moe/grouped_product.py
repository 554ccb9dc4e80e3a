"""The products of all experts in one kernel each, where torch has it (grouped GEMM).

The kernel has habits that its callers must know. Rows beyond the last group are left as they were found in memory, in
its result and in its gradient. Weights of a group without rows may get a gradient that is not zero on some GPUs.
And groups must start at multiples of 16 bytes.
"""

import torch
from torch import Tensor
from torch.nn import functional

_ALIGNMENT = 8
"""Elements of bf16 in 16 bytes."""


def can_group(rows: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes these rows and a stack of weights [experts, width, width]."""
    aligned = all(width % _ALIGNMENT == 0 for width in weight.shape[1:])
    return rows.is_cuda and rows.dtype == torch.bfloat16 and aligned


def grouped_swiglu(rows: Tensor, counts: Tensor, gate: Tensor, up: Tensor, output: Tensor) -> Tensor:
    """Map the first ``counts[0]`` rows with the first expert, and so on; further rows to zeros.

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
    """Return each row's place in the padded rows, and where the padded groups end: int32.

    No padded group is empty, and rows that belong to none are placed behind the last.
    """
    padded = counts.add(_ALIGNMENT - 1).div(_ALIGNMENT, rounding_mode="floor").clamp(min=1) * _ALIGNMENT
    filled_ends, ends = counts.cumsum(0), padded.cumsum(0)
    shifts = functional.pad(ends - filled_ends, (1, 0))
    # A group is shifted by the padding of those before it; what belongs to none, by all of the padding.
    number = torch.arange(rows, device=counts.device)
    return number + shifts[torch.searchsorted(filled_ends, number, right=True)], ends.int()
