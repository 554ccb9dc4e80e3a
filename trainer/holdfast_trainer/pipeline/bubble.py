"""The share of a step in which this rank's pipeline stages are idle: measured, not computed from the schedule.

A stage is busy while it computes a forward or backward pass of a microbatch, with the communication inside of it. The
rest of the schedule's step is the bubble. On a GPU the marks are events in its stream. They are read when the next step
begins or later, so that nothing waits for them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Generic, ParamSpec, Protocol, TypeVar

import torch
from torch.distributed.pipelining import PipelineStage

COMPUTATIONS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
"""Methods of a stage that torch's schedules call, each for one microbatch."""

_logger = logging.getLogger("holdfast_trainer")

Mark = TypeVar("Mark")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class DeviceClock(Protocol[Mark]):
    """Marks moments in the work of a device."""

    def mark(self) -> Mark:
        """Return a mark of this moment in the device's order of work."""

    def is_past(self, mark: Mark) -> bool:
        """Return whether the device has reached ``mark``."""

    def between_s(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two marks that the device has reached."""


class BubbleMeter(Generic[Mark]):
    """Times the computations of a rank's stages, from its creation on. It replaces their methods by timed ones."""

    def __init__(self, stages: Iterable[PipelineStage], clock: DeviceClock[Mark]) -> None:
        self._clock = clock
        self._step: _Step[Mark] | None = None
        self._unread: _Step[Mark] | None = None
        self._share: float | None = None
        stages = list(stages)
        missing = {name for name in COMPUTATIONS for stage in stages if not hasattr(stage, name)}
        self._is_measured = not missing
        if missing:
            _logger.warning(
                "the stages of torch %s have no %s: the share of the pipeline bubble is not measured",
                torch.__version__,
                ", ".join(sorted(missing)),
            )
            return
        for stage in stages:
            for name in COMPUTATIONS:
                setattr(stage, name, self._timed(getattr(stage, name)))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time the step of the schedule that runs inside of this context."""
        self._read()
        self._step = _Step(start=self._clock.mark())
        try:
            yield
        finally:
            step, self._step = self._step, None
        step.end = self._clock.mark()
        self._unread = step

    def share(self) -> float | None:
        """Return the idle share, 0 to 1, of the newest step that the device has finished.

        It is None before the first, and if torch's stages lack a method that must be timed.
        """
        self._read()
        return self._share

    def _read(self) -> None:
        step = self._unread
        if not self._is_measured or step is None or not self._clock.is_past(step.end):
            return
        self._unread = None
        busy_s = sum(self._clock.between_s(start, end) for start, end in step.computations)
        self._share = 1 - busy_s / self._clock.between_s(step.start, step.end)

    def _timed(self, compute: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @wraps(compute)
        def timed(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
            if self._step is None:
                return compute(*arguments, **options)
            start = self._clock.mark()
            result = compute(*arguments, **options)
            self._step.computations.append((start, self._clock.mark()))
            return result

        return timed


@dataclass
class _Step(Generic[Mark]):
    """The marks of a step."""

    start: Mark
    computations: list[tuple[Mark, Mark]] = field(default_factory=list)
    end: Mark = field(init=False)


class HostClock:
    """Reads the host's clock, for a CPU: its work is done when the call returns."""

    def mark(self) -> float:
        """See :class:`DeviceClock`."""
        return time.perf_counter()

    def is_past(self, mark: float) -> bool:  # noqa: ARG002 - the protocol of clocks
        """See :class:`DeviceClock`."""
        return True

    def between_s(self, start: float, end: float) -> float:
        """See :class:`DeviceClock`."""
        return end - start


class CudaClock:
    """Records events in the current stream of a GPU."""

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


def make_meter(
    stages: Iterable[PipelineStage], device: torch.device
) -> BubbleMeter[torch.cuda.Event] | BubbleMeter[float]:
    """Return a meter of stages that compute on ``device``."""
    return BubbleMeter(stages, CudaClock()) if device.type == "cuda" else BubbleMeter(stages, HostClock())
