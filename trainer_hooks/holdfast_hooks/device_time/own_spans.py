"""The spans of each step in which the GPU works for this rank alone, and does not wait for others.

    own seconds of a step = sum of (end - start) over its spans

A span ends where a call with other ranks begins, and the next one starts where the GPU can continue after it. What the
training thread cannot separate makes the whole step unknown: an unknown time accuses nobody.
"""

from collections import deque
from dataclasses import dataclass, field

from holdfast_hooks.device_time.gpu_marks import GpuMarks, Mark

MOST_SPANS = 128
"""Spans of a step. One with more is unknown: its marks would cost too much."""
MOST_STEPS = 32
"""Steps whose marks the GPU has not reached. The host seldom runs ahead by more than one or two."""


@dataclass
class _Step:
    spans: list[tuple[Mark, Mark]] = field(default_factory=list)
    unknown: str = ""
    """Why the time of the step cannot be known; empty: it can."""

    def marks(self) -> list[Mark]:
        return [mark for span in self.spans for mark in span]


class OwnSpans:
    """Collects the spans of steps (training thread), and adds them up once the GPU has reached their ends (reporter).

    The two threads share two queues, whose operations are atomic. Neither thread ever waits for the GPU.
    """

    def __init__(self, marks: GpuMarks) -> None:
        self.own_s = 0.0
        """Seconds of all steps that are known (reporter thread)."""
        self.steps = 0
        """Number of those steps."""
        self.unknown_steps = 0
        """Number of steps whose time cannot be known (training thread)."""
        self.why_unknown = ""
        """Reason of the newest of them."""
        self._marks = marks
        self._present: _Step | None = None
        self._started: Mark | None = None
        self._ended: deque[_Step] = deque()
        self._waiting: list[_Step] = []

    @property
    def is_running(self) -> bool:
        """Whether a span has started and not ended."""
        return self._started is not None

    def begin_step(self) -> None:
        """Begin a step, without a span."""
        self._drop_present()
        self._present = _Step()

    def resume(self) -> None:
        """Start a span, unless one is running."""
        step = self._present
        if step is None or step.unknown or self._started is not None:
            return
        if len(step.spans) >= MOST_SPANS:
            self.give_up(f"it has more than {MOST_SPANS} calls with other ranks")
            return
        self._started = self._marks.mark()
        if self._started is None:
            self.give_up("a CUDA graph is captured in it")

    def pause(self) -> None:
        """End the span that is running, if any."""
        start, self._started = self._started, None
        step = self._present
        if start is None or step is None:
            return
        end = self._marks.mark()
        if end is None:
            self._marks.give_back((start,))
            self.give_up("a CUDA graph is captured in it")
        else:
            step.spans.append((start, end))

    def give_up(self, why: str) -> None:
        """Make the time of the present step unknown."""
        step = self._present
        if step is None or step.unknown:
            return
        start, self._started = self._started, None
        self._marks.give_back([*step.marks(), *(() if start is None else (start,))])
        step.spans.clear()
        step.unknown = why

    def end_step(self) -> None:
        """End the present step. Its time is known when the GPU has reached its last mark."""
        self.pause()
        step, self._present = self._present, None
        if step is None:
            return
        if not step.unknown and len(self._ended) >= MOST_STEPS:
            self._marks.give_back(step.marks())
            step.unknown = "its marks are not read"
        if step.unknown:
            self.unknown_steps += 1
            self.why_unknown = step.unknown
        elif step.spans:
            self._ended.append(step)

    def read(self) -> None:
        """Add up the steps that the GPU has finished (reporter thread)."""
        while self._ended:
            self._waiting.append(self._ended.popleft())
        # Not only the oldest: marks may be in several streams, and one that never comes must not hold up the others.
        self._waiting = [step for step in self._waiting if not self._is_read(step)][-MOST_STEPS:]

    def _is_read(self, step: _Step) -> bool:
        # The last mark is the last to be reached, mostly: one query tells that a step is not over.
        if not all(self._marks.is_past(mark) for mark in reversed(step.marks())):
            return False
        self.own_s += sum(max(0.0, self._marks.between_s(start, end)) for start, end in step.spans)
        self.steps += 1
        self._marks.give_back(step.marks())
        return True

    def _drop_present(self) -> None:
        """Forget a step that the loop has left, for example by ``break``."""
        self.give_up("it was not finished")
        self._present = None
