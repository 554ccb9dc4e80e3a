"""Remembers loss, throughput and gradient norm as top has seen them, and draws each in one line."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast_proto.v1.control_pb2 import RunStatus

MOST_POINTS = 600
"""Points that are kept of each curve: ten minutes of a run with a step in each second."""

_BARS = "▁▂▃▄▅▆▇█"


class _Point(NamedTuple):
    """Numbers of one step; None: it has not reported this one."""

    step: int
    loss: float | None
    tokens_per_s: float | None
    grad_norm: float | None


class SeenNumbers:
    """Loss, tokens per second and gradient norm of the steps that were seen."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=MOST_POINTS)

    def see(self, status: RunStatus) -> None:
        """Take in one status. Steps that a restart has undone are dropped: their losses are not part of the run."""
        step = status.newest_step
        if step < 0:
            return
        while self._points and self._points[-1].step >= step:
            self._points.pop()
        loss = status.loss if status.HasField("loss") else None
        tokens_per_s = status.tokens_per_s if status.HasField("tokens_per_s") else None
        self._points.append(
            _Point(step, loss, tokens_per_s, status.grad_norm if status.HasField("grad_norm") else None)
        )

    @property
    def losses(self) -> list[float]:
        """Losses, oldest first; of a step without one, or with one that is not finite, none."""
        return _finite(point.loss for point in self._points)

    @property
    def throughputs(self) -> list[float]:
        """Tokens per second, oldest first."""
        return _finite(point.tokens_per_s for point in self._points)

    @property
    def gradient_norms(self) -> list[float]:
        """Gradient norms, oldest first."""
        return _finite(point.grad_norm for point in self._points)


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the newest ``width`` values as bars from the lowest to the highest of them; "" without two values."""
    shown = list(values[-width:]) if width > 0 else []
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    if not math.isfinite(high - low) or high == low:
        return _BARS[0] * len(shown)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in shown)
