"""Finds the module in which a gradient first is not finite, on this rank and before any reduction.

The gradient of each watched module's output is summed as it passes. If an element is not finite, neither is the sum. (A
sum can also overflow, but only with gradients that are as good as infinite.) The first sum in backward order that is
not finite names the module: the one after that point made the gradient.

Gradients of weights are not checked, because that would take a sum per parameter. If only such a gradient is not
finite, it shows in the gradient's norm, and no module is named.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import time_ns
from typing import TYPE_CHECKING, Any

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.state.sharding import is_dtensor
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_hooks.telemetry.own_gradients import deferred
from holdfast_proto.v1.session_pb2 import NonFiniteOrigin, StepRecord

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

_SUMS_PER_STEP = 4096

_POINTS = 4
"""Most points to watch in a chain. A hook in autograd costs tens of microseconds, whatever it does. In a long chain,
the modules between two points are named together."""


@dataclass(frozen=True)
class _Passed:
    """The sum of a gradient on its way from one module to the one before."""

    giver: str | None
    """Name of the module that made the gradient; None if that is on another rank."""
    total: "torch.Tensor"
    unix_ns: int


@dataclass(frozen=True)
class GradientSums:
    """The sums of one step, in backward order."""

    passed: tuple[_Passed, ...]
    totals: DeferredNumbers

    def put(self, record: StepRecord) -> bool:
        """Put the origin into the step's record (reporter thread); return False while a GPU still owes sums.

        There is no origin if all sums are finite, or if the first bad one is of a gradient from another rank.
        """
        totals = self.totals.read()
        if totals is None:
            return False
        for one, total in zip(self.passed, totals, strict=True):
            if not math.isfinite(total):
                if one.giver is not None:
                    record.nonfinite_origin.CopyFrom(NonFiniteOrigin(module=one.giver, unix_s=one.unix_ns / 1e9))
                break
        return True


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


class GradientWatch:
    """Puts hooks on watched modules and collects the sums. For the training thread and autograd's threads."""

    def __init__(self, once: OnceLog) -> None:
        self._once = once
        self._passed: deque[_Passed] = deque(maxlen=_SUMS_PER_STEP)
        self._handles: list[RemovableHandle] = []

    def watch(self, modules: "Mapping[str, torch.nn.Module]", *, then: str | None) -> None:
        """Watch a chain of modules: see :meth:`Hooks.watch_gradients`."""
        names = list(modules)
        last = len(names) - 1
        ends = sorted({round(last * point / (_POINTS - 1)) for point in range(_POINTS)})
        parts = [_span(names[one + 1 : other + 1]) for one, other in pairwise(ends)]
        for end, giver in zip(ends, [*parts, then], strict=True):
            self._handles.append(modules[names[end]].register_forward_hook(partial(self._on_output, giver)))
        first = modules[names[0]]
        self._handles.append(first.register_forward_pre_hook(partial(self._on_input, names[0])))

    def take(self) -> GradientSums | None:
        """Return the sums since the last call, if any."""
        if not self._passed:
            return None
        passed = tuple(self._passed)
        self._passed.clear()
        return GradientSums(passed, deferred(one.total for one in passed))

    def close(self) -> None:
        """Remove the hooks from the modules, and collect no more sums."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        # Hooks on tensors go with their graph. One that has not run backward yet finds no room for its sums.
        self._passed = deque(maxlen=0)

    def _on_input(self, giver: str, _module: object, inputs: tuple[Any, ...]) -> None:
        self._follow(inputs, giver)

    def _on_output(self, giver: str | None, _module: object, _inputs: object, output: object) -> None:
        self._follow(output if isinstance(output, (tuple, list)) else (output,), giver)

    def _follow(self, values: "tuple[Any, ...] | list[Any]", giver: str | None) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        for value in values:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.register_hook(partial(self._pass, giver))  # type: ignore[no-untyped-call]
                return

    def _pass(self, giver: str | None, gradient: "torch.Tensor") -> None:
        import torch

        try:
            # Of a DTensor, sum this rank's own part. The sum of the whole would be a collective.
            local = gradient.to_local() if is_dtensor(gradient) else gradient
            total = local.detach().sum(dtype=torch.float32)
        except (RuntimeError, TypeError) as error:
            self._once.warn("a gradient is not watched", error)
            return
        self._passed.append(_Passed(giver, total, time_ns()))
