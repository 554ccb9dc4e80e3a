"""A clock that jumps, as far as this process sees it."""

import sys
import time
from collections.abc import Callable
from typing import Any

from holdfast_hooks.faults.effect import Site
from holdfast_hooks.faults.fault import Fault


class ClockJump:
    """Sets the wall clock of this process's Python code forward by ``duration_s``, or back, for good.

    ``time.time`` and ``time.time_ns`` are replaced wherever a module holds them. Extensions in C, and with them
    ``datetime.now``, still see the system's clock, and monotonic clocks never jump.
    """

    def __init__(self, fault: Fault, _: Site) -> None:
        self._jump_s = fault.duration_s
        read_s, read_ns = time.time, time.time_ns

        def jumped_s() -> float:
            return read_s() + self._jump_s

        def jumped_ns() -> int:
            return read_ns() + round(self._jump_s * 1e9)

        self._replaced: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
            (read_s, jumped_s),
            (read_ns, jumped_ns),
        ]
        for original, jumped in self._replaced:
            _replace_everywhere(original, jumped)

    def moment(self, step: int, phase: int) -> bool:
        """It is never over."""
        return False

    def end(self) -> None:
        """Set the clock right, also for whatever has wrapped the replaced functions in the meantime."""
        self._jump_s = 0.0
        for original, jumped in self._replaced:
            _replace_everywhere(jumped, original)


def _replace_everywhere(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for module in list(sys.modules.values()):
        # Some modules make their attributes when asked: only what is really there is looked at.
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)
