"""Estimates how long the training thread sleeps for reasons of its own, and not because it waits for other ranks.

Each poll of the progress is a sample. The thread slept for itself if it did not run at all during the poll, is asleep
after it, and the poll saw no pending call. What it slept for is not known: a timer, a disk, a lock, its own threads.
"""

import os
from time import monotonic

from holdfast_hooks.once import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.telemetry.timeline import Timeline

_TRAINING = (Phase.FORWARD_BACKWARD, Phase.OPTIMIZER)
"""Other phases are compared by the clock, and a rank may be in them alone."""

_LONGEST_S = 0.5
"""Most time that one sample stands for: the reporter itself may have been paused."""

_ASLEEP = ("S", "D")


class OwnWait:
    """Takes the samples. Reporter thread only: call :meth:`before` and :meth:`after` around each poll."""

    def __init__(self, timeline: Timeline, once: OnceLog) -> None:
        self.total_s = 0.0
        """Estimated seconds since the start of the rank."""
        self._timeline = timeline
        self._once = once
        self._folder = f"/proc/self/task/{os.getpid()}"
        self._looked_s = monotonic()
        self._before = ""

    def before(self) -> None:
        """Note how long the thread has run."""
        is_training = self._timeline.step >= 0 and self._timeline.phase in _TRAINING
        self._before = self._read("schedstat") if is_training else ""

    def after(self, *, no_call_pending: bool) -> None:
        """Add the time since the last poll if the thread slept for itself during this one."""
        now_s = monotonic()
        since_s, self._looked_s = min(now_s - self._looked_s, _LONGEST_S), now_s
        if not self._before or not no_call_pending or self._timeline.phase not in _TRAINING:
            return
        # The state comes first. To read it, this thread releases the interpreter's lock, and a training thread that
        # waits for that lock runs from then on.
        if self._state() in _ASLEEP and self._read("schedstat") == self._before:
            self.total_s += since_s

    def _state(self) -> str:
        return self._read("stat").rpartition(")")[2].strip()[:1]

    def _read(self, name: str) -> str:
        """Return one of the thread's files; empty where the kernel has none."""
        try:
            descriptor = os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._once.warn("sleep of the training thread is not measured", error)
            return ""
        try:
            return os.read(descriptor, 1024).decode(errors="replace")
        except OSError:
            return ""
        finally:
            os.close(descriptor)
