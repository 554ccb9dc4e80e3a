"""Everything about the notifications of one run, for the shell that leads it."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast_base.files import exposure
from holdfast_core.model import CoreState
from holdfast_daemon.file_saver import FileSaver
from holdfast_daemon.notify import reported as reported_file
from holdfast_daemon.notify.channels.building import build, check, secret_files
from holdfast_daemon.notify.delivery import DeliveryCounts, DeliveryQueue
from holdfast_daemon.notify.grouping import Grouping
from holdfast_daemon.notify.heartbeat import HeartbeatSender
from holdfast_daemon.notify.message_text import RunText
from holdfast_daemon.notify.reported import Reported
from holdfast_daemon.notify.run_news import RunWatch
from holdfast_proto import run_files
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED, HEARTBEAT

log = logging.getLogger(__name__)

LAST_PATIENCE_S = 5.0
"""Time that the last messages have before the daemon exits."""


def _warn_of_exposure(spec: store.RunSpec) -> None:
    for line in filter(None, map(exposure, secret_files(spec.notify))):
        log.warning("run %s: %s", spec.run, line)


class _Notified:
    """The parts for one instance of a run whose spec asks for notifications."""

    def __init__(self, spec: store.RunSpec, path: Path, host: str) -> None:
        notify = spec.notify
        self.reported: Reported = reported_file.load(path, spec.instance)
        self.watch = RunWatch(spec, self.reported)
        self.wording = RunText(spec)
        self.grouping = Grouping(spec.run, host, notify.min_interval_s)
        names = [channel.name for channel in notify.channels]
        self.counts = DeliveryCounts([*names, HEARTBEAT] if notify.HasField("heartbeat") else names)
        self.saver = FileSaver(path, self._text, "messages may be repeated after a restart")
        self.queues = [
            DeliveryQueue(
                spec.run,
                channel.name,
                build(channel),
                self.counts,
                self.saver.save_soon,
                status_now=self._status_now,
            )
            for channel in notify.channels
        ]
        self.heartbeat = (
            HeartbeatSender(spec.run, notify.heartbeat, self.counts) if notify.HasField("heartbeat") else None
        )
        for notice in self.reported.grouped:
            self.grouping.add(notice)
        self._send_queued()
        # On a thread: a file system that hangs must not hold up the ticks.
        threading.Thread(target=_warn_of_exposure, args=(spec,), name="notify-secrets", daemon=True).start()

    def _send_queued(self) -> None:
        for queue in self.queues:
            for message in self.reported.queued.get(queue.name, ()):
                queue.put(message)

    def send_due(self, now: float, *, is_last: bool = False) -> bool:
        """Put the message that is due into all queues; return whether there was one."""
        message = self.grouping.take(now, is_last=is_last)
        if message is None:
            return False
        for queue in self.queues:
            queue.put(message)
        return True

    def _status_now(self, key: str) -> str:
        """Return the newest status of the incident with a key; "" for the run itself, and for an earlier one."""
        run, _, incident = key.rpartition("/")
        return self.reported.statuses.get(incident, "") if run == self.wording.key else ""

    def _text(self) -> str:
        # On the saver's thread: each part is a copy, or replaced and not changed, while the event loop continues.
        reported = self.reported
        return reported_file.reported_text(
            Reported(
                reported.instance,
                statuses=dict(reported.statuses),
                forgotten=reported.forgotten,
                has_ended=reported.has_ended,
                grouped=self.grouping.waiting,
                queued={queue.name: queue.waiting for queue in self.queues},
            )
        )


class RunNotifier:
    """Sees each state of a run's core, and reports to people what is new. Nothing here blocks or raises."""

    def __init__(self, run: str, directory: Path, host: str = "") -> None:
        self._run = run
        self._path = run_files.notifications(directory, run)
        self._host = host or socket.gethostname()
        self._instance = ""
        self._notified: _Notified | None = None
        self._has_failed = False

    @property
    def counts(self) -> DeliveryCounts | None:
        """How deliveries ended; None if nobody is notified of this run."""
        return None if self._notified is None else self._notified.counts

    def assume(self, state: CoreState, now: float) -> None:
        """Take in the state with which this daemon begins to lead."""
        self._contained(lambda: self._assume(state, now))

    def see(self, state: CoreState, now: float) -> None:
        """Take in the state after a tick."""
        self._contained(lambda: self._see(state, now))

    def leave(self, now: float) -> None:
        """Send what waits for its group: this daemon does not lead any more."""
        self._contained(lambda: self._leave(now))

    def wait_idle(self, deadline_s: float) -> bool:
        """Wait until everything has an outcome, at most until the monotonic ``deadline_s``. Blocks."""
        notified = self._notified
        if notified is None:
            return True
        is_idle = [queue.wait_idle(max(0.0, deadline_s - time.monotonic())) for queue in notified.queues]
        if notified.heartbeat is not None:
            is_idle.append(notified.heartbeat.wait_idle(max(0.0, deadline_s - time.monotonic())))
        for queue in notified.queues:
            queue.close()
        notified.saver.finish(max(0.2, deadline_s - time.monotonic()))
        return all(is_idle)

    def _contained(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                log.error("run %s: notifications failed; a further failure is not logged", self._run, exc_info=error)

    def _begin(self, spec: store.RunSpec) -> None:
        if spec.instance == self._instance:
            return
        if self._notified is not None:
            self._leave(time.time())
        self._instance = spec.instance
        self._notified = None
        check(spec.notify)
        self._notified = _Notified(spec, self._path, self._host) if spec.HasField("notify") else None

    def _assume(self, state: CoreState, now: float) -> None:
        self._begin(state.spec)
        if self._notified is not None and self._notified.watch.assume(state, now):
            self._notified.saver.save_soon()

    def _see(self, state: CoreState, now: float) -> None:
        self._begin(state.spec)
        notified = self._notified
        if notified is None:
            return
        had_ended = notified.reported.has_ended
        has_changed, notices = notified.watch.look(state)
        for notice in notices:
            notified.grouping.add(notice)
        if notified.send_due(now) or has_changed:
            notified.saver.save_soon()
        if notified.heartbeat is not None:
            if state.record.phase not in ENDED:
                notified.heartbeat.beat(now)
            elif not had_ended:
                end = notified.wording.of_end(state.record)
                notified.heartbeat.end(end.what if end.status == "failed" else "")

    def _leave(self, now: float) -> None:
        if self._notified is not None and self._notified.send_due(now, is_last=True):
            self._notified.saver.save_soon()


class Notifiers:
    """The notifiers of all runs of a daemon. One outlives the shell of its run, whose failure it survives."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_run: dict[str, RunNotifier] = {}

    def of(self, run: str) -> RunNotifier:
        """Return the notifier of a run."""
        if run not in self._by_run:
            self._by_run[run] = RunNotifier(run, self._directory)
        return self._by_run[run]

    async def close(self, patience_s: float = LAST_PATIENCE_S) -> None:
        """Give the last messages some seconds to arrive. What does not arrive stays in the files."""
        deadline_s = time.monotonic() + patience_s
        idle = await asyncio.to_thread(lambda: [one.wait_idle(deadline_s) for one in self._by_run.values()])
        if not all(idle):
            log.warning("not all notifications were delivered within %g s: the last ones may be missing", patience_s)
