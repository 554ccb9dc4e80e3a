"""Copies from a GPU that overlap with its work, and a snapshot that is complete only after them."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast_hooks.once import OnceLog
from holdfast_hooks.state.counterparts import parameters_of
from holdfast_hooks.state.encoding import Part, Stateful
from holdfast_hooks.state.sharding import is_dtensor, local_part
from holdfast_proto.snapshot import SnapshotError

if TYPE_CHECKING:
    import torch


class DeviceCopy(NamedTuple):
    """A tensor on a device and its place in host memory."""

    place: "torch.Tensor"
    part: Part


class CopyEvent(Protocol):
    """A point in a device's work; a torch.cuda.Event is one."""

    def synchronize(self) -> None:
        """Wait, in the calling thread, until the device is there."""


class CopyStream(Protocol):
    """A device's queue for copies."""

    def copy(self, copies: Sequence[DeviceCopy]) -> CopyEvent:
        """Enqueue copies of what all work that was enqueued before leaves there; return the point after them."""

    def hold_back(self, event: CopyEvent) -> None:
        """Have the work that the calling thread enqueues from now on wait, on the device, for ``event``."""


class CudaCopyStream:
    """A stream of its own on the current GPU. Copies to memory that is not pinned are waited for."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._stream = self._cuda.Stream()

    def copy(self, copies: Sequence[DeviceCopy]) -> CopyEvent:
        """See CopyStream."""
        self._stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._stream):
            for place, part in copies:
                place.copy_(part.local.detach(), non_blocking=True)
        event: CopyEvent = self._stream.record_event(self._cuda.Event(blocking=True))
        return event

    def hold_back(self, event: CopyEvent) -> None:
        """See CopyStream."""
        self._cuda.current_stream().wait_event(event)


class DeviceCopies:
    """Has snapshots of device tensors copied while training goes on. For the training thread.

    The optimizers of ``state`` wait for the copies of their parameters and of their own state, on the device and
    at their next step. Whatever else is in the snapshot may change at any time: for that the device waits at once.
    """

    def __init__(self, state: Mapping[str, Stateful], stream: CopyStream) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._parameters = {name: found for name, value in state.items() if (found := parameters_of(value))}
        self._stream = stream
        self._held: CopyEvent | None = None
        self._hook: Any = register_optimizer_step_pre_hook(self._before_update)

    def start(self, copies: Sequence[DeviceCopy]) -> CopyEvent:
        """Enqueue the copies; return the point after the last."""
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
    """A snapshot whose copies are under way; ``complete`` is called in another thread after the last."""

    def __init__(
        self, event: CopyEvent, copies: Iterable[DeviceCopy], complete: Callable[[], None], once: OnceLog
    ) -> None:
        self.failed = False
        """Whether there is no such snapshot after all."""
        self._event = event
        self._copies = copies  # else torch could give their memory to something else
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
            self._once.warn("a snapshot failed", repr(error))


def _address(tensor: "torch.Tensor") -> int:
    """Return where a tensor's memory starts; of a DTensor, that of this rank's part."""
    local = local_part(tensor)[0] if is_dtensor(tensor) else tensor
    return local.untyped_storage().data_ptr()
