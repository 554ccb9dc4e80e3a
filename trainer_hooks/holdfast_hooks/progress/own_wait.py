"""Estimates how long the training thread sleeps: for reasons of its own, or because it waits for other ranks.

Each poll of the progress is a sample. The thread slept if it did not run at all during the poll, and is asleep after
it. It slept for itself if the poll saw no pending call. What for is not known: a timer, a disk, a lock, its own
threads. If a call was pending, it most likely waited for that: this is the communication that nothing hides.
"""

import threading
from time import monotonic

from holdfast_base.files import ProcFile
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.phases import Phase
from holdfast_hooks.telemetry.timeline import Timeline

_TRAINING = (Phase.FORWARD_BACKWARD, Phase.OPTIMIZER)
"""Other phases are compared by the clock, and a rank may be in them alone."""

_LONGEST_S = 0.5
"""Most time that one sample stands for: the reporter itself may have been paused."""

_ASLEEP = ("S", "D")


class OwnWait:
    """Takes the samples. The thread that makes it is the first one that it looks at.

    Reporter thread only: call :meth:`before` and :meth:`after` around each poll.
    """

    def __init__(self, timeline: Timeline, once: OnceLog) -> None:
        self.total_s = 0.0
        """Estimated seconds for reasons of its own since the start of the rank."""
        self.in_calls_s = 0.0
        """Estimated seconds while a call with other ranks was pending, likewise."""
        self._timeline = timeline
        self._once = once
        self._looked_s = monotonic()
        self._before = ""
        self._thread = 0
        self.follow(threading.get_native_id())

    def follow(self, thread: int) -> None:
        """Look at this thread from now on. ``thread``: its number, as the kernel shows it."""
        if thread != self._thread:
            self._thread = thread
            folder = f"/proc/self/task/{thread}"
            self._run_times, self._stat = ProcFile(f"{folder}/schedstat"), ProcFile(f"{folder}/stat")

    def before(self) -> None:
        """Note how long the thread has run."""
        is_training = self._timeline.step >= 0 and self._timeline.phase in _TRAINING
        self._before = self._read(self._run_times) if is_training else ""

    def after(self, *, is_call_pending: bool | None) -> None:
        """Add the time since the last poll if the thread slept during this one.

        ``is_call_pending``: whether the poll saw a call with other ranks that had not completed; None: not for certain.
        """
        now_s = monotonic()
        since_s, self._looked_s = min(now_s - self._looked_s, _LONGEST_S), now_s
        if not self._before or is_call_pending is None or self._timeline.phase not in _TRAINING:
            return
        # The state comes first. To read it, this thread releases the interpreter's lock, and a training thread that
        # waits for that lock runs from then on.
        if self._state() not in _ASLEEP or self._read(self._run_times) != self._before:
            return
        if is_call_pending:
            self.in_calls_s += since_s
        else:
            self.total_s += since_s

    def _state(self) -> str:
        return self._read(self._stat).rpartition(")")[2].strip()[:1]

    def _read(self, file: ProcFile) -> str:
        """Return what a file holds; empty where the kernel has none."""
        try:
            return file.read()
        except OSError as error:
            self._once.warn("sleep of the training thread is not measured", error)
            return ""
