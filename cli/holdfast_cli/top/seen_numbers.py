"""Remembers loss and throughput as top has seen them, and draws them in one line."""

import math
from collections import deque
from collections.abc import Sequence

from holdfast_proto.v1.control_pb2 import RunStatus

MOST_POINTS = 600
"""Points that are kept of each curve: ten minutes of a run with a step in each second."""

_BARS = "▁▂▃▄▅▆▇█"


class SeenNumbers:
    """Loss and tokens per second of the steps that were seen."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, float | None, float | None]] = deque(maxlen=MOST_POINTS)

    def see(self, status: RunStatus) -> None:
        """Take in one status. Steps that a restart has undone are dropped: their losses are not part of the run."""
        step = status.newest_step
        if step < 0:
            return
        while self._points and self._points[-1][0] > step:
            self._points.pop()
        if self._points and self._points[-1][0] == step:
            self._points.pop()
        loss = status.loss if status.HasField("loss") else None
        self._points.append((step, loss, status.tokens_per_s if status.HasField("tokens_per_s") else None))

    @property
    def losses(self) -> list[float]:
        """Losses, oldest first; of a step without one, or with one that is not finite, none."""
        return [loss for _, loss, _ in self._points if loss is not None and math.isfinite(loss)]

    @property
    def throughputs(self) -> list[float]:
        """Tokens per second, oldest first."""
        return [speed for _, _, speed in self._points if speed is not None and math.isfinite(speed)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the newest ``width`` values as bars from the lowest to the highest of them; "" without two values."""
    shown = list(values[-width:]) if width > 0 else []
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    if not math.isfinite(high - low) or high == low:
        return _BARS[0] * len(shown)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in shown)
