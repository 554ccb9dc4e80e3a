"""Copies from a GPU that overlap with the next step, and the snapshot that is complete after them.

What a stream guarantees: work in one stream runs in the order in which it was enqueued; work in two streams runs in any
order, unless one waits for an event of the other. So two waits make a copy in a stream of its own exact.

* The copies wait for all work that the training thread enqueued before them: they see the state at the end of the step.
* The work that changes the state next waits for the copies. For parameters and optimizer state that is the optimizer's
  next step. For everything else it may be the very next kernel.

The device waits in both cases. The training thread only enqueues and continues.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast_hooks.gpu_work import GpuPoint, on_gpu
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.state.counterparts import parameters_of
from holdfast_hooks.state.encoding import Stateful, TensorPart
from holdfast_hooks.state.sharding import is_dtensor, local_part
from holdfast_proto.snapshot import SnapshotError

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle


class DeviceCopy(NamedTuple):
    """A tensor on a device, and the tensor in a slot to copy it to."""

    place: "torch.Tensor"
    part: TensorPart


class CopyEvent(Protocol):
    """A point in a device's work."""

    def synchronize(self) -> None:
        """Wait in the calling thread until the device has come to this point."""


class CopyStream(Protocol):
    """A device's queue of copies."""

    def copy(self, copies: Sequence[DeviceCopy]) -> CopyEvent:
        """Enqueue copies behind all work that was enqueued before; return the point after them."""

    def hold_back(self, event: CopyEvent) -> None:
        """Let the work that the calling thread enqueues from now on wait for ``event``, on the device."""


class CudaCopyStream:
    """A separate stream on each GPU that has tensors to copy, whichever the current GPU is.

    A GPU copies on its own only to memory that is locked for it, as slots are (see slot_memory.py). The training thread
    waits for a copy to any other memory.
    """

    def __init__(self) -> None:
        self._streams: dict[int, Any] = {}

    def copy(self, copies: Sequence[DeviceCopy]) -> GpuPoint:
        """Enqueue copies on these streams: see CopyStream. Tensors on other devices are copied immediately."""
        by_gpu: dict[int, list[DeviceCopy]] = {}
        for copy in copies:
            device = copy.part.local.device
            if device.type == "cuda":
                by_gpu.setdefault(device.index, []).append(copy)
            else:
                copy.place.copy_(copy.part.local.detach())
        events = (self._copy_from(gpu, of_gpu) for gpu, of_gpu in by_gpu.items())
        return GpuPoint(tuple(event for point in events for event in point.events))

    def _copy_from(self, gpu: int, copies: Sequence[DeviceCopy]) -> GpuPoint:
        import torch

        cuda: Any = torch.cuda
        # Without the GPU as the current one, the end of stream() would set up the current one: see gpu_work.py.
        with on_gpu(gpu):
            if gpu not in self._streams:
                self._streams[gpu] = cuda.Stream()
            stream = self._streams[gpu]
            stream.wait_stream(cuda.current_stream())
            with cuda.stream(stream):
                for place, part in copies:
                    place.copy_(part.local.detach(), non_blocking=True)
                return GpuPoint.now([gpu])

    def hold_back(self, event: CopyEvent) -> None:
        """Let the current streams wait: see CopyStream."""
        assert isinstance(event, GpuPoint)
        event.hold_back()


class DeviceCopies:
    """Copies the device tensors of snapshots while training continues. Training thread only.

    At its next step an optimizer in ``state`` waits, on the device, for the copies of its parameters and its own state.
    Anything else in the snapshot may change at any time, so the device waits immediately for those copies.
    """

    def __init__(self, state: Mapping[str, Stateful], stream: CopyStream) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._parameters = {name: found for name, value in state.items() if (found := parameters_of(value))}
        self._stream = stream
        self._held: CopyEvent | None = None
        self._hook: RemovableHandle = register_optimizer_step_pre_hook(self._before_update)

    def start(self, copies: Sequence[DeviceCopy]) -> CopyEvent:
        """Enqueue the copies; return the point after the last one."""
        # By address, because a model and an optimizer name the same parameter in two ways.
        addresses = {_address(parameter) for found in self._parameters.values() for parameter in found.values()}
        updated: list[DeviceCopy] = []
        others: list[DeviceCopy] = []
        for copy in copies:
            owner = copy.part.name.partition("/")[0]
            is_updated = owner in self._parameters or _address(copy.part.local) in addresses
            (updated if is_updated else others).append(copy)
        if others:
            self._stream.hold_back(self._stream.copy(others))
        self._held = self._stream.copy(updated)
        return self._held

    def close(self) -> None:
        """Hook into no optimizer any more. For copies that are still under way, the device waits from here on."""
        self._hook.remove()
        with contextlib.suppress(RuntimeError):  # the device is lost: it will change nothing either
            self._before_update()

    def _before_update(self, *_: object) -> None:
        if self._held is not None:
            self._stream.hold_back(self._held)
            self._held = None


class Landing:
    """A snapshot whose copies are under way. A thread of its own waits for them and then calls ``complete``."""

    def __init__(
        self, event: CopyEvent, copies: Iterable[DeviceCopy], complete: Callable[[], None], once: OnceLog
    ) -> None:
        self.failed = False
        """Whether the copies failed, so that there is no such snapshot."""
        self._event = event
        # Held until the copies are done: torch would give the memory of a freed tensor to the next one immediately.
        self._copies = copies
        self._complete = complete
        self._once = once
        self._thread = threading.Thread(target=self._land, name="holdfast-landing", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the snapshot is complete or has failed, ``timeout_s`` at most if given."""
        self._thread.join(timeout_s)

    def _land(self) -> None:
        try:
            self._event.synchronize()
            self._complete()
        except (RuntimeError, SnapshotError) as error:
            self.failed = True
            self._once.warn("a snapshot failed, training continues", repr(error))


def _address(tensor: "torch.Tensor") -> int:
    """Return where a tensor's memory starts; of a DTensor, that of this rank's part."""
    local = local_part(tensor)[0] if is_dtensor(tensor) else tensor
    return local.untyped_storage().data_ptr()
