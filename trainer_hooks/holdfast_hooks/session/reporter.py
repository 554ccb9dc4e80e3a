"""The background thread that reports to the agent and carries out its commands."""

import random
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty
from time import monotonic

from holdfast_base.threads import show_name
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.profiling.step_profiler import StepProfiler
from holdfast_hooks.restore.awaited_start import AwaitedStart
from holdfast_hooks.session.link import ENDING_S, Link
from holdfast_hooks.session.rank_commands import RankCommands
from holdfast_hooks.snapshots.slot_requests import SlotRequests
from holdfast_hooks.telemetry.report_builder import ReportBuilder, Sources
from holdfast_proto.limits import REPORT_INTERVAL_S
from holdfast_proto.rank_context import THREAD_PREFIX
from holdfast_proto.v1.session_pb2 import AgentMessage, Hello, RankMessage

_OUTBOX_MESSAGES = 256
_JITTER = 0.25
"""Share of the interval by which a poll comes earlier or later. Polls in step with the training loop would see the same
moment of each step, and their samples would not show how long that moment is."""


class Reporter:
    """Polls progress, sends a report every interval, answers commands and asks for slots: one thread of each rank."""

    def __init__(
        self,
        *,
        target: str,
        hello: Hello,
        sources: Sources,
        commands: RankCommands,
        slot_requests: SlotRequests,
        profiler: StepProfiler,
        start: AwaitedStart,
        once: OnceLog,
    ) -> None:
        self._wake = threading.Event()
        self._link = Link(target, hello, self._wake, once)
        self._sources = sources
        self._builder = ReportBuilder(sources, once)
        self._commands = commands
        self._slot_requests = slot_requests
        self._profiler = profiler
        self._start = start
        self._once = once
        self._interval_s = REPORT_INTERVAL_S
        self._next_poll_s = monotonic()
        self._chance = random.Random()  # its own: the state of Python's generator belongs to the training loop
        self._report_due = False
        self._outbox: deque[RankMessage] = deque(maxlen=_OUTBOX_MESSAGES)
        self._deadline_s: float | None = None
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=f"{THREAD_PREFIX}reporter", daemon=True)

    def start(self) -> None:
        """Start the threads that connect and report."""
        self._link.start()
        self._thread.start()

    def finish(self, *, timeout_s: float, last_words: str | None = None, finished: bool = False) -> None:
        """Send what is left for up to ``timeout_s``, and end the threads. Later calls do nothing.

        ``finished``: the rank means to leave.
        """
        if self._deadline_s is None:
            self._sources.last_words = last_words
            self._finished = finished
            self._deadline_s = monotonic() + timeout_s
            self._wake.set()
            self._thread.join(timeout_s + ENDING_S)

    def _run(self) -> None:
        show_name()
        while self._deadline_s is None:
            self._wake.wait(max(0.0, self._next_poll_s - monotonic()))
            self._wake.clear()
            self._guarded(self._tick)
        self._guarded(self._drain)
        self._link.close(max(0.0, self._deadline_s - monotonic()))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever fails here, training and reporting must continue
            self._once.warn("a report failed", repr(error))

    def _tick(self) -> None:
        self._read_inbox()
        if monotonic() >= self._next_poll_s:
            self._next_poll_s = monotonic() + self._interval_s * self._chance.uniform(1 - _JITTER, 1 + _JITTER)
            self._report_due = True
            self._builder.poll()
            self._ask_for_slots()
            self._send_profile()
        if self._link.ready:
            self._send_next()

    def _send_next(self) -> None:
        if self._outbox:
            self._link.send(self._outbox.popleft())
            return
        self._commands.answered()
        if self._report_due:
            self._link.send(RankMessage(report=self._builder.report()))
            self._report_due = self._builder.has_more

    def _read_inbox(self) -> None:
        while True:
            try:
                self._handle(self._link.inbox.get_nowait())
            except Empty:
                return

    def _handle(self, message: AgentMessage) -> None:
        match message.WhichOneof("kind"):
            case "welcome":
                self._interval_s = message.welcome.report_interval_s or REPORT_INTERVAL_S
                self._slot_requests.forget_request()
            case "slot_grant":
                self._slot_requests.receive(message.slot_grant)
            case "command":
                self._outbox.append(RankMessage(ack=self._commands.execute(message.command)))
            case "start_from":
                self._start.receive(message.start_from)
                if not message.start_from.preparing:
                    self._link.await_no_start()

    def _ask_for_slots(self) -> None:
        request = self._slot_requests.next_request()
        if request is not None:
            self._outbox.append(RankMessage(slot_request=request))

    def _send_profile(self) -> None:
        done = self._profiler.take_done()
        if done is not None:
            self._outbox.append(RankMessage(profile_done=done))

    def _drain(self) -> None:
        """Send the answers and the final report, as far as the agent takes them before the deadline."""
        deadline_s = self._deadline_s
        assert deadline_s is not None
        self._builder.poll()
        self._send_profile()
        self._report_due = True
        while monotonic() < deadline_s and (self._outbox or self._report_due or not self._link.ready):
            self._read_inbox()
            if self._link.ready:
                self._send_last()
            else:
                self._wake.wait(max(0.0, deadline_s - monotonic()))
                self._wake.clear()

    def _send_last(self) -> None:
        if self._outbox:
            self._link.send(self._outbox.popleft())
            return
        report = self._builder.report(final=True)
        self._report_due = self._builder.has_more
        report.finished = self._finished and not self._report_due
        self._link.send(RankMessage(report=report))
