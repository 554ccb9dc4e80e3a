"""Signs of life for a service outside, which raises the alarm when they stop: a dead man's switch."""

import logging
import threading
from pathlib import Path

from holdfast_base.http_post import PingError, ping, ping_failure
from holdfast_daemon.notify.delivery import DeliveryCounts
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import HEARTBEAT

log = logging.getLogger(__name__)

_LAST_ATTEMPTS = 3


class HeartbeatSender:
    """Pings while :meth:`beat` is called, which happens in each tick of the leader. It never blocks."""

    def __init__(self, run: str, heartbeat: store.Heartbeat, counts: DeliveryCounts) -> None:
        self._run = run
        self._heartbeat = heartbeat
        self._counts = counts
        self._next_s = float("-inf")
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._complaint = ""

    def beat(self, now_s: float) -> None:
        """Ping if it is time and no ping is under way."""
        if self._has_ended or now_s < self._next_s or self._is_busy:
            return
        self._next_s = now_s + self._heartbeat.every_s
        self._begin("", attempts=1)

    def end(self, failure: str) -> None:
        """Send the last ping. ``failure``: how the run failed, or "" if it ended as planned."""
        if not self._has_ended:
            self._has_ended = True
            self._begin(failure, attempts=_LAST_ATTEMPTS)

    def wait_idle(self, patience_s: float) -> bool:
        """Wait until no ping is under way; return whether that is so."""
        thread = self._thread
        if thread is not None:
            thread.join(patience_s)
        return not self._is_busy

    @property
    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _begin(self, failure: str, *, attempts: int) -> None:
        before = self._thread

        def work() -> None:
            if before is not None:
                before.join()  # a late sign of life must not follow the last ping
            for _ in range(attempts):
                if self._send(failure):
                    self._counts.end(HEARTBEAT, "sent")
                    return
            self._counts.end(HEARTBEAT, "gave_up")

        thread = threading.Thread(target=work, name="notify-heartbeat", daemon=True)
        thread.start()
        self._thread = thread

    def _send(self, failure: str) -> bool:
        self._counts.attempt(HEARTBEAT)
        url_file = Path(self._heartbeat.url_file)
        fail_file = Path(self._heartbeat.fail_url_file) if self._heartbeat.fail_url_file else None
        try:
            if failure:
                ping_failure(url_file, fail_file, failure)
            else:
                ping(url_file, f"run {self._run}")
        except PingError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("run %s: the heartbeat failed: %s", self._run, error)
            return False
        self._complaint = ""
        return True
