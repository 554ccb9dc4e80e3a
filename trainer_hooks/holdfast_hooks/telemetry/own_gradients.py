"""Watches the gradients that this rank's own backward pass makes, for some steps.

A hook on a parameter gets its gradient as autograd made it: before it is added to others, and before
DistributedDataParallel or FSDP sum it over ranks. If it is not finite although all parameters of this rank are, this
rank made it, or got it in the backward pass from a rank that shares its layers.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Any

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.state.counterparts import named_parameters
from holdfast_hooks.state.sharding import is_dtensor
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_proto.v1.session_pb2 import BadGradient, StepRecord

# Sums of gradients and parameters. A sum is not finite if an element is not.
#
# It can also overflow, but only where the numbers are as good as infinite. A sum takes no memory, unlike a test of each
# element. On a GPU it is read later, so that the training thread does not wait for it.

if TYPE_CHECKING:
    import torch


def local_sum(tensor: "torch.Tensor") -> "torch.Tensor | None":
    """Return the sum of this rank's part, or None if there is nothing to add. It makes no collective call."""
    import torch

    local = tensor.to_local() if is_dtensor(tensor) else tensor
    if not local.is_floating_point() or local.is_sparse or not local.numel():
        return None
    return local.detach().sum(dtype=torch.float32)


def deferred(totals: "Iterable[torch.Tensor]") -> DeferredNumbers:
    """Return sums as numbers to come: with one copy from a GPU, if all are on the same one."""
    import torch

    every = list(totals)
    devices = {one.device for one in every}
    return DeferredNumbers.of([torch.stack(every)] if len(devices) == 1 and every[0].is_cuda else every)


def are_finite(totals: Iterable[float]) -> bool:
    """Whether all sums are finite."""
    return all(map(math.isfinite, totals))


if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

_SUMS_PER_STEP = 16384


@dataclass
class OwnGradients:
    """The gradients of one step, in the order in which autograd made them."""

    names: tuple[str, ...]
    totals: DeferredNumbers
    parameters: DeferredNumbers
    """Sums of all parameters that the step computed with."""
    unix_ns: int
    is_over: bool = False
    """Whether later steps can show nothing more (reporter thread)."""

    def put(self, record: StepRecord) -> bool:
        """Put the first bad gradient into the step's record (reporter thread); False while a GPU still owes sums."""
        totals, parameters = self.totals.read(), self.parameters.read()
        if totals is None or parameters is None:
            return False
        if not are_finite(parameters):
            self.is_over = True  # every gradient is bad from now on
            return True
        bad = next((name for name, total in zip(self.names, totals, strict=True) if not math.isfinite(total)), None)
        if bad is not None:
            record.bad_gradient.CopyFrom(BadGradient(parameter=bad, own=True, unix_s=self.unix_ns / 1e9))
            self.is_over = True
        return True


class OwnGradientWatch:
    """Puts hooks on parameters and collects the sums. For the training thread and autograd's threads."""

    def __init__(self, state: Mapping[str, Any], once: OnceLog) -> None:
        self._state = state
        self._once = once
        self._handles: list[RemovableHandle] = []
        self._hooked: set[int] = set()
        self._seen: list[tuple[str, torch.Tensor]] = []
        self._parameters: list[torch.Tensor] = []

    def start(self) -> None:
        """Watch all parameters. Raises what torch raises."""
        for owner, name, parameter in named_parameters(self._state):
            self._hook(f"{owner}.{name}", parameter)
        for owner, part in self._state.items():
            for path, module in part.named_modules() if hasattr(part, "named_modules") else ():
                if any(is_dtensor(parameter) for parameter in module.parameters(recurse=False)):
                    # FSDP computes with another parameter in its place, which is there from the forward pass on.
                    prefix = f"{owner}.{path}" if path else owner
                    self._handles.append(module.register_forward_pre_hook(partial(self._on_forward, prefix)))

    def begin_step(self) -> bool:
        """Note the parameters before a step; return False if they are known to be bad, so that all gradients are."""
        self._seen, self._parameters = [], []
        for _, _, parameter in named_parameters(self._state):
            self._note_parameter(parameter)
        return self._parameters[:1] == [] or self._parameters[0].is_cuda or are_finite(map(float, self._parameters))

    def take(self) -> OwnGradients | None:
        """Return the sums of the step that ends, if any are worth a look."""
        if not self._seen:
            return None
        names, totals = zip(*self._seen, strict=True)
        self._seen = []
        return OwnGradients(names, deferred(totals), deferred(self._parameters), time_ns())

    def stop(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._seen, self._parameters = [], [], []
        self._hooked.clear()

    def _hook(self, name: str, parameter: "torch.Tensor") -> None:
        if parameter.requires_grad and id(parameter) not in self._hooked:
            self._hooked.add(id(parameter))
            handle = parameter.register_hook(partial(self._on_gradient, name))  # type: ignore[no-untyped-call]
            self._handles.append(handle)

    def _note_parameter(self, parameter: "torch.Tensor") -> None:
        total = local_sum(parameter)
        if total is not None and len(self._parameters) < _SUMS_PER_STEP:
            self._parameters.append(total)

    def _on_forward(self, prefix: str, module: "torch.nn.Module", _inputs: object) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        try:
            for name, parameter in module.named_parameters(recurse=False):
                self._hook(f"{prefix}.{name}", parameter)
                # With the parts of other ranks, which may be bad although this rank's own are not.
                self._note_parameter(parameter)
        except Exception as error:  # noqa: BLE001 - the user's own objects may raise anything; training continues
            self._once.warn("gradients are not looked at", repr(error))

    def _on_gradient(self, name: str, gradient: "torch.Tensor") -> None:
        try:
            total = local_sum(gradient)
            if total is None or len(self._seen) >= _SUMS_PER_STEP:
                return
            if total.is_cuda or not math.isfinite(total.item()):
                self._seen.append((name, total))
        except Exception as error:  # noqa: BLE001 - the user's own objects may raise anything; training continues
            self._once.warn("gradients are not looked at", repr(error))
