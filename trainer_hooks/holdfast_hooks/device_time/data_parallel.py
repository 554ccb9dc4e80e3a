"""Finds where the backward pass of DistributedDataParallel ends and its wait for other ranks begins.

Its reducer sends each bucket of gradients in a stream of its own while the backward pass continues. The current stream
waits for them after the last gradient. So the rank's own work ends with the last gradient: that of the first trained
parameter, mostly. Whatever comes after it, up to the next phase, is not counted.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast_hooks.state.bucket_order import wrappers

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class DataParallelModels:
    """The models that DistributedDataParallel wraps in this process, with a hook on one parameter of each."""

    def __init__(self, on_last_gradient: Callable[[], None]) -> None:
        self._on_last_gradient = on_last_gradient
        self._handles: list[RemovableHandle] = []
        self.groups: set[str] = set()
        """Names of the groups whose unseen calls are those of a reducer."""

    def find(self) -> None:
        """Follow all wrappers of the process, once."""
        self.follow(wrappers())

    def follow(self, wrappers: Iterable[Any]) -> None:
        """Put the hooks on the models of wrappers."""
        for wrapper in wrappers:
            first = next((one for one in wrapper.module.parameters() if one.requires_grad), None)
            # At the start of a forward pass, buffers are sent by a call of C++, for which the current stream waits.
            sends_buffers = wrapper.broadcast_buffers and any(True for _ in wrapper.module.buffers())
            if first is None or sends_buffers:
                continue
            self._handles.append(first.register_post_accumulate_grad_hook(self._after_gradient))
            self.groups.add(wrapper.process_group.group_name)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.groups = set()

    def _after_gradient(self, _parameter: object) -> None:
        self._on_last_gradient()
