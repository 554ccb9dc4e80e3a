"""Numbers that the training thread leaves behind without waiting for the GPU that computes them."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast_hooks.gpu_work import GpuPoint

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DeferredNumbers:
    """Tensors of numbers in host memory, or on their way there."""

    tensors: "tuple[torch.Tensor, ...]"
    arrived: GpuPoint | None
    """The point in the GPUs' work after the copies; None: the tensors are in host memory."""

    @classmethod
    def of(cls, tensors: "Iterable[torch.Tensor]") -> "DeferredNumbers":
        """Start to copy ``tensors`` to the host, behind all work on the current streams (training thread)."""
        sources = tuple(tensors)
        gpus = {source.device.index for source in sources if source.is_cuda}
        if not gpus:
            return cls(sources, None)
        # A non-blocking copy to the CPU goes to pinned memory, so nobody waits for it here.
        copies = tuple(source.to("cpu", non_blocking=True) for source in sources)
        return cls(copies, GpuPoint.now(gpus))

    def read(self) -> list[float] | None:
        """Return all numbers in order, integers as such, or None while they have not arrived. Never waits."""
        if self.arrived is not None and not self.arrived.query():
            return None
        return [number for tensor in self.tensors for number in tensor.flatten().tolist()]


def to_number(value: object) -> float | DeferredNumbers:
    """Return ``value`` as a float, or as one number to come if it is on a GPU.

    Raises TypeError or ValueError if it is not one number that this rank holds as a whole.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return float(value)  # type: ignore[arg-type]
    if value.numel() != 1:
        raise ValueError(f"a tensor of shape {tuple(value.shape)} is not one number")
    whole = _whole(value)
    return DeferredNumbers.of((whole.detach(),)) if whole.is_cuda else float(whole.item())


def _whole(value: "torch.Tensor") -> "torch.Tensor":
    if not (hasattr(value, "to_local") and hasattr(value, "placements")):
        return value
    if not all(placement.is_replicate() for placement in value.placements):
        raise ValueError("this DTensor is not replicated: report its full_tensor()")
    whole: torch.Tensor = value.to_local()
    return whole
