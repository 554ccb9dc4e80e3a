"""Looks at this rank's gradients, once it has reported a loss or a gradient norm that is not finite.

A healthy step costs nothing. In a bad one, the gradients that the parameters hold name a parameter. They may be sums
over ranks already, and then they say nothing about this rank. So the next steps are watched before any sum, as long as
the parameters are finite: a loop that skips bad steps keeps them so, and a rank that makes bad gradients makes more.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from time import time_ns
from typing import Any

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.state.counterparts import named_parameters
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_hooks.telemetry.own_gradients import OwnGradients, OwnGradientWatch, deferred, local_sum
from holdfast_proto.v1.session_pb2 import BadGradient, StepRecord

NUMBERS = ("loss", "grad_norm")
"""Numbers that make the hooks look."""

_LOOKS = 8
"""Most looks of a process at steps whose gradients are not bad by design."""

_ALL_LOOKS = 64
_WATCHES, _WATCHED_STEPS = 3, 16
"""Limits for one process: a run may live with a bad step now and then, and must not become slower."""


@dataclass(frozen=True)
class HeldGradients:
    """The gradients that the parameters held at a report, in the order of the state."""

    names: tuple[str, ...]
    totals: DeferredNumbers
    unix_ns: int

    def put(self, record: StepRecord) -> bool:
        """Put the first bad one into the step's record (reporter thread); return False while a GPU still owes sums.

        If several gradients are there and all are bad, clipping by a norm that is NaN has most likely made them so, and
        none is named.
        """
        totals = self.totals.read()
        if totals is None:
            return False
        bad = [name for name, total in zip(self.names, totals, strict=True) if not math.isfinite(total)]
        if bad and (len(bad) < len(self.names) or len(bad) == 1):
            record.bad_gradient.CopyFrom(BadGradient(parameter=bad[0], unix_s=self.unix_ns / 1e9))
        return True


class BadGradients:
    """Decides when to look and to watch. Only the training thread calls it, except for :meth:`alarm`."""

    def __init__(self, state: Mapping[str, Any], once: OnceLog) -> None:
        self._state = state
        self._once = once
        self._watch = OwnGradientWatch(state, once)
        self._is_alarmed = False
        self._looks_left, self._all_looks_left, self._watches_left = _LOOKS, _ALL_LOOKS, _WATCHES
        self._looks_of_step = 0
        self._steps_left = 0
        """Steps for which the gradients are still watched; 0: they are not."""
        self._newest: OwnGradients | None = None

    def alarm(self) -> None:
        """Watch the next steps (any thread)."""
        self._is_alarmed = True

    def calm(self) -> None:
        """Take back the alarm and the looks of a step whose gradients are bad by design."""
        self._is_alarmed = False
        self._looks_left += self._looks_of_step
        self._looks_of_step = 0

    def look(self) -> HeldGradients | None:
        """Return what the gradients are at this moment; None if there are none, or after too many looks."""
        self.alarm()
        if not (self._looks_left and self._all_looks_left):
            return None
        self._looks_left -= 1
        self._all_looks_left -= 1
        self._looks_of_step += 1
        try:
            held = [
                (f"{owner}.{name}", total)
                for owner, name, parameter in named_parameters(self._state)
                if parameter.grad is not None and (total := local_sum(parameter.grad)) is not None
            ]
            if not held:
                return None
            return HeldGradients(tuple(name for name, _ in held), deferred(total for _, total in held), time_ns())
        except Exception as error:  # noqa: BLE001 - the user's own objects may raise anything; training continues
            self._once.warn("gradients are not looked at", repr(error))
            self._all_looks_left = 0
            return None

    def end_step(self) -> OwnGradients | None:
        """Return the gradients of a watched step, and start or end the watch."""
        self._looks_of_step = 0
        if not self._is_alarmed and not self._steps_left:
            return None
        try:
            return self._advance()
        except Exception as error:  # noqa: BLE001 (as in look)
            self._once.warn("gradients are not watched", repr(error))
            self._watches_left = 0
            self.close()
            return None

    def close(self) -> None:
        """Remove all hooks."""
        self._steps_left = 0
        self._watch.stop()

    def _advance(self) -> OwnGradients | None:
        seen = self._watch.take() if self._steps_left else None
        if not self._steps_left and self._watches_left:
            self._watches_left -= 1
            self._steps_left = _WATCHED_STEPS
            self._watch.start()
        elif self._steps_left:
            self._steps_left -= 1
        self._is_alarmed = False
        is_over = self._newest is not None and self._newest.is_over
        self._newest = seen or self._newest
        if not self._steps_left or is_over or not self._watch.begin_step():
            self._newest = None
            self.close()
        return seen
