"""Delivers the messages of one channel: in order, with retries, on a thread that nothing waits for."""

import collections
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from holdfast_daemon.notify.channels.sending import Channel, DeliveryDelayedError, DeliveryRefusedError
from holdfast_daemon.notify.message import Message

log = logging.getLogger(__name__)

OUTCOMES = ("sent", "refused", "gave_up", "dropped")
MOST_WAITING = 100
"""Most messages that wait for one channel. The oldest that is not being sent is dropped for a newer one."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
LONGEST_RETRY_AFTER_S = 900.0
"""Longest wait that a service can ask for."""
GIVE_UP_S = 3600.0
"""Age of a message after which it is not tried again."""


class DeliveryCounts:
    """How deliveries ended, for /metrics."""

    def __init__(self, channels: Sequence[str] = ()) -> None:
        self.attempts: dict[str, int] = dict.fromkeys(channels, 0)
        """Channel -> attempts to send."""
        self.outcomes: dict[tuple[str, str], int] = {(name, outcome): 0 for name in channels for outcome in OUTCOMES}
        """Channel and outcome -> messages."""
        self._lock = threading.Lock()

    def attempt(self, channel: str) -> None:
        """Count an attempt."""
        with self._lock:
            self.attempts[channel] = self.attempts.get(channel, 0) + 1

    def end(self, channel: str, outcome: str) -> None:
        """Count a message that needs no further attempt."""
        with self._lock:
            self.outcomes[channel, outcome] = self.outcomes.get((channel, outcome), 0) + 1


class DeliveryQueue:
    """The messages that wait for one channel. All methods may be called from any thread, and none blocks for long.

    Its thread is a daemon thread that exists only while there are messages: it cannot keep the process alive, however
    long the channel hangs.
    """

    def __init__(
        self,
        run: str,
        name: str,
        channel: Channel,
        counts: DeliveryCounts,
        on_change: Callable[[], None],
        *,
        unix_s: Callable[[], float] = time.time,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.name = name
        self._run = run
        self._channel = channel
        self._counts = counts
        self._on_change = on_change
        self._unix_s = unix_s
        self._first_pause_s = first_pause_s
        self._waiting: collections.deque[Message] = collections.deque()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._complaint = ""
        """Reason that was logged last; empty: the last message was sent."""

    def put(self, message: Message) -> None:
        """Have a message sent."""
        with self._condition:
            if self._is_closed:
                return
            if len(self._waiting) >= MOST_WAITING:
                del self._waiting[1]  # the first one may be on its way
                self._counts.end(self.name, "dropped")
            self._waiting.append(message)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=f"notify-{self.name}", daemon=True)
                thread.start()  # may raise: the next message then tries again
                self._thread = thread

    @property
    def waiting(self) -> tuple[Message, ...]:
        """Messages that have no outcome yet, the oldest first."""
        with self._condition:
            return tuple(self._waiting)

    def wait_idle(self, patience_s: float) -> bool:
        """Wait until every message has an outcome; return whether that is so."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._waiting, patience_s)

    def close(self) -> None:
        """Begin no other attempt. Messages that wait stay in :attr:`waiting`."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def _work(self) -> None:
        while True:
            with self._condition:
                if self._is_closed or not self._waiting:
                    self._thread = None
                    self._condition.notify_all()
                    return
                message = self._waiting[0]
            outcome = self._deliver(message)
            if not outcome:
                continue  # it is closed
            with self._condition:
                self._waiting.popleft()
                self._counts.end(self.name, outcome)
                self._condition.notify_all()
            self._on_change()

    def _deliver(self, message: Message) -> str:
        """Return the outcome of a message; "" if the queue was closed before there was one."""
        pause_s = self._first_pause_s
        while True:
            self._counts.attempt(self.name)
            asked_s = 0.0
            try:
                self._channel.send(message)
            except DeliveryRefusedError as error:
                self._complain(f"{error}: the message is dropped")
                return "refused"
            except DeliveryDelayedError as error:
                self._complain(f"{error}: it is tried again")
                asked_s = min(error.retry_after_s or 0.0, LONGEST_RETRY_AFTER_S)
            except Exception as error:
                log.error("run %s: channel %s failed", self._run, self.name, exc_info=error)
                return "refused"
            else:
                self._thrive()
                return "sent"
            # Jitter: many daemons may have lost the same service at the same time.
            wait_s = max(pause_s * random.uniform(0.75, 1.25), asked_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if self._unix_s() + wait_s > message.sent_unix_s + GIVE_UP_S:
                self._complain(f"a message is dropped: it could not be sent within {GIVE_UP_S / 60:.0f} minutes")
                return "gave_up"
            with self._condition:
                if self._condition.wait_for(lambda: self._is_closed, wait_s):
                    return ""

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            log.warning("run %s: channel %s: %s", self._run, self.name, reason)

    def _thrive(self) -> None:
        if self._complaint:
            self._complaint = ""
            log.info("run %s: channel %s works again", self._run, self.name)
