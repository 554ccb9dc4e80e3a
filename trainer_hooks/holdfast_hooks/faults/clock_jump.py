"""The fault of a wall clock that jumps, for this process only."""

import sys
import time
from collections.abc import Callable
from typing import Any

from holdfast_hooks.faults.effect import Site
from holdfast_hooks.faults.fault import Fault


class ClockJump:
    """Moves the wall clock of this process's Python code by ``duration_s``, back if negative, until it is ended.

    It replaces ``time.time`` and ``time.time_ns`` in every module that holds them. C extensions, and with them
    ``datetime.now``, still see the system's clock. Monotonic clocks never jump.
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

    def moment(self, step: int, phase: int) -> bool:  # noqa: ARG002 - the protocol of effects
        """Return False: it never ends by itself."""
        return False

    def end(self) -> None:
        """Set the clock right, also for code that has wrapped the replaced functions since."""
        self._jump_s = 0.0
        for original, jumped in self._replaced:
            _replace_everywhere(jumped, original)


def _replace_everywhere(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for module in list(sys.modules.values()):
        # Some modules create an attribute when it is read, so look only into their dict.
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)
