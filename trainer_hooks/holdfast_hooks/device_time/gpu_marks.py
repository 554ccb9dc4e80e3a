"""Marks of moments in a GPU's work. The training thread leaves them behind, the reporter thread reads them later."""

import sys
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

Mark = Any
"""A mark, which only the device that made it understands: a torch.cuda.Event."""


class GpuMarks(Protocol):
    """A GPU on which moments can be marked. Nothing here waits for it."""

    def mark(self) -> Mark | None:
        """Return a mark behind all work on the current stream; None if none can be made now."""

    def is_past(self, mark: Mark) -> bool:
        """Whether the GPU has reached a mark."""

    def between_s(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two marks that the GPU has reached."""

    def give_back(self, marks: Iterable[Mark]) -> None:
        """Take marks that nobody will read, to use them again."""


MOST_KEPT = 512
"""Events that are kept to be used again."""


class CudaMarks:
    """Events of CUDA, used again and again: to create one costs more than to record it."""

    def __init__(self) -> None:
        self._free: deque[Any] = deque(maxlen=MOST_KEPT)
        self._gpu: int | None = None
        """Index of the GPU of all marks."""

    def mark(self) -> Mark | None:
        """Record an event: see GpuMarks. A stream that is captured into a graph would get it in every replay."""
        cuda: Any = sys.modules["torch"].cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        try:
            event = self._free.popleft()
        except IndexError:
            event = cuda.Event(enable_timing=True)
            self._gpu = cuda.current_device()
        event.record()
        return event

    def is_past(self, mark: Mark) -> bool:
        """Query the event: see GpuMarks.

        The reporter thread has another current GPU, and a query would create a context on that one.
        """
        with sys.modules["torch"].cuda.device(self._gpu):
            return bool(mark.query())

    def between_s(self, start: Mark, end: Mark) -> float:
        """Return the time between two events: see GpuMarks."""
        with sys.modules["torch"].cuda.device(self._gpu):
            return float(start.elapsed_time(end)) / 1000

    def give_back(self, marks: Iterable[Mark]) -> None:
        """Keep the events: see GpuMarks. Beyond MOST_KEPT they are destroyed."""
        self._free.extend(marks)
