"""How much of a step this rank's pipeline stages sat idle: measured, not computed from the schedule.

A stage is busy while it computes a forward or backward pass of a microbatch, communication inside of it
included; the rest of the schedule's step is the bubble. On a GPU the marks are events in its stream, which are
read when the next step begins or later, so that nothing waits for them.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol

import torch
from torch.distributed.pipelining import PipelineStage

_COMPUTATIONS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


class DeviceClock(Protocol):
    """Marks moments on the device's time line."""

    def mark(self) -> Any:
        """Return a mark of now, as the device will see it."""

    def is_past(self, mark: Any) -> bool:
        """Whether the device has come to ``mark``."""

    def between_s(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks that are past."""


class BubbleMeter:
    """Times the computations of one rank's stages, of one schedule, from when it is made."""

    def __init__(self, stages: Iterable[PipelineStage], clock: DeviceClock) -> None:
        self._clock = clock
        self._step: _Step | None = None
        self._unread: _Step | None = None
        self._share: float | None = None
        for stage in stages:
            for name in _COMPUTATIONS:
                setattr(stage, name, self._timed(getattr(stage, name)))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Surround one step of the schedule."""
        self._read()
        self._step = _Step(start=self._clock.mark())
        try:
            yield
        finally:
            step, self._step = self._step, None
        step.end = self._clock.mark()
        self._unread = step

    def share(self) -> float | None:
        """Return the idle share, from 0 to 1, of the newest step that the device has finished; None before that."""
        self._read()
        return self._share

    def _read(self) -> None:
        step = self._unread
        if step is None or not self._clock.is_past(step.end):
            return
        self._unread = None
        busy_s = sum(self._clock.between_s(start, end) for start, end in step.computations)
        self._share = 1 - busy_s / self._clock.between_s(step.start, step.end)

    def _timed(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compute)
        def timed(*arguments: Any, **options: Any) -> Any:
            if self._step is None:
                return compute(*arguments, **options)
            start = self._clock.mark()
            result = compute(*arguments, **options)
            self._step.computations.append((start, self._clock.mark()))
            return result

        return timed


@dataclass
class _Step:
    """The marks of a step."""

    start: Any
    computations: list[tuple[Any, Any]] = field(default_factory=list)
    end: Any = None


class HostClock:
    """The wall clock, for a CPU: it has done what it was told when the call returns."""

    def mark(self) -> float:
        """See :class:`DeviceClock`."""
        return time.perf_counter()

    def is_past(self, mark: float) -> bool:
        """See :class:`DeviceClock`."""
        return True

    def between_s(self, start: float, end: float) -> float:
        """See :class:`DeviceClock`."""
        return end - start


class CudaClock:
    """Events in the current stream."""

    def mark(self) -> torch.cuda.Event:
        """See :class:`DeviceClock`."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def is_past(self, mark: torch.cuda.Event) -> bool:
        """See :class:`DeviceClock`."""
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def between_s(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """See :class:`DeviceClock`."""
        return float(start.elapsed_time(end)) / 1000


def make_clock(device: torch.device) -> DeviceClock:
    """Return the clock of ``device``."""
    return CudaClock() if device.type == "cuda" else HostClock()
