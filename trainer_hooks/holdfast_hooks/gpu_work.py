"""Points in the work of GPUs that any thread may look at or wait for.

The current device belongs to the thread, and is GPU 0 in a new one. A call of CUDA creates a context on the current
device: some hundred MB on GPU 0 for each rank of the node. So each call here selects the GPU that it is about. torch
then leaves the thread's own device unset if it has no context there.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast_hooks.capture_gate import GATE

if TYPE_CHECKING:
    import torch


_POLL_S = 0.002


@dataclass(frozen=True)
class GpuPoint:
    """A point in the work of one or several GPUs. Without any, it has been reached."""

    events: tuple[tuple[int, Any], ...]
    """Index of a GPU, and a torch.cuda.Event of it."""

    @classmethod
    def now(cls, gpus: Iterable[int]) -> "GpuPoint":
        """Return the present point in the current streams of GPUs (the thread that enqueues the work)."""
        import torch

        cuda: Any = torch.cuda
        events = []
        for gpu in gpus:
            event = cuda.Event()
            event.record(cuda.current_stream(gpu))  # on the stream's GPU, whatever the current one is
            events.append((gpu, event))
        return cls(tuple(events))

    def query(self) -> bool:
        """Whether all GPUs are known to have come to this point. Never waits. False while a graph is captured."""
        with GATE.passing() as may_call:
            return may_call and all(_on(gpu, event.query) for gpu, event in self.events)

    def synchronize(self) -> None:
        """Wait in the calling thread until all GPUs have come to this point. Raises RuntimeError if one is lost.

        It asks again and again: a call that waits would be in the way of a capture that begins meanwhile.
        """
        while not self.query():
            time.sleep(_POLL_S)

    def hold_back(self) -> None:
        """Let the work that the calling thread enqueues from now on wait for this point, each GPU for its own."""
        import torch

        for gpu, event in self.events:
            torch.cuda.current_stream(gpu).wait_event(event)


def gpu_of(tensors: "Iterable[torch.Tensor]") -> int | None:
    """Return the index of the first GPU that has one of ``tensors``; None: none has."""
    devices = (tensor.device for tensor in tensors)
    return next((device.index for device in devices if device.type == "cuda" and device.index is not None), None)


def on_gpu(gpu: int) -> Any:  # noqa: ANN401 - torch's own context managers have no types
    """Return a context manager in which ``gpu`` is the current device of the calling thread."""
    import torch

    return torch.cuda.device(gpu)


def _on(gpu: int, call: Any) -> Any:  # noqa: ANN401
    with on_gpu(gpu):
        return call()
