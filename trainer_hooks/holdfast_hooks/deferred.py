"""Tensors that are read off the training thread, without making it wait for a GPU."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DeferredNumbers:
    """Tensors of numbers in host memory, or on their way there."""

    tensors: "tuple[torch.Tensor, ...]"
    arrived: "torch.cuda.Event | None"

    @classmethod
    def of(cls, tensors: "Iterable[torch.Tensor]") -> "DeferredNumbers":
        """Have ``tensors`` copied to the host, behind all work on the current stream (training thread)."""
        sources = tuple(tensors)
        on_gpu = next((source for source in sources if source.is_cuda), None)
        if on_gpu is None:
            return cls(sources, None)
        import torch

        copies = tuple(source.to("cpu", non_blocking=True) for source in sources)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(on_gpu.device))
        return cls(copies, arrived)

    def read(self) -> list[float] | None:
        """Return all numbers in order, integers as such, or None while they have not arrived. Never waits."""
        if self.arrived is not None and not self.arrived.query():  # type: ignore[no-untyped-call]
            return None
        return [number for tensor in self.tensors for number in tensor.flatten().tolist()]
