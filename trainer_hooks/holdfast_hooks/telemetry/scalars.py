"""Turning what a loop reports into a float without making the training thread wait."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DeferredScalar:
    """A number that is still on its way from a GPU."""

    copy: "torch.Tensor"
    arrived: "torch.cuda.Event"

    def read(self) -> float | None:
        """Return the number, or None while it has not arrived. Never waits."""
        if not self.arrived.query():  # type: ignore[no-untyped-call]
            return None
        return float(self.copy.item())


def to_scalar(value: object) -> float | DeferredScalar:
    """Return ``value`` as a float, or as a float to come if it lies on a GPU.

    Raises TypeError or ValueError if it is not one number that this rank holds as a whole.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return float(value)  # type: ignore[arg-type]
    if value.numel() != 1:
        raise ValueError(f"a tensor of shape {tuple(value.shape)} is not one number")
    return _read(_whole(value))


def _whole(value: Any) -> Any:
    if not hasattr(value, "to_local"):
        return value
    if not all(placement.is_replicate() for placement in value.placements):
        raise ValueError("this DTensor is not replicated: report its full_tensor()")
    return value.to_local()


def _read(value: "torch.Tensor") -> float | DeferredScalar:
    if not value.is_cuda:
        return float(value.item())
    import torch

    # A non-blocking copy to the CPU lands in pinned memory, so that nobody waits for it here.
    copy = value.detach().to("cpu", non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(value.device))
    return DeferredScalar(copy, arrived)
