"""Delivers the messages of one channel: in order, with retries, on a thread that nothing waits for.

After an outage of the receiver, what has waited for long is sent as one message.
"""

import collections
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from holdfast_daemon.notify.channels.sending import Channel, DeliveryDelayedError, DeliveryRefusedError
from holdfast_daemon.notify.grouping import late_message
from holdfast_daemon.notify.message import Message

log = logging.getLogger(__name__)

OUTCOMES = ("sent", "refused", "gave_up", "dropped")
MOST_WAITING = 100
"""Most messages that wait for one channel. The oldest that is not being sent is dropped for a newer one."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
LONGEST_RETRY_AFTER_S = 900.0
"""Longest wait that a service can ask for."""
LATE_S = 180.0
"""Age from which messages that wait are sent as one."""
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
        status_now: Callable[[str], str] = lambda _: "",
        unix_s: Callable[[], float] = time.time,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """``status_now`` returns the present status of the incident with a notice's key, or "" if it is not known."""
        self.name = name
        self._run = run
        self._channel = channel
        self._counts = counts
        self._on_change = on_change
        self._status_now = status_now
        self._unix_s = unix_s
        self._first_pause_s = first_pause_s
        self._waiting: collections.deque[Message] = collections.deque()
        self._tried = 0
        """How many of the first in ``_waiting`` are on their way now."""
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
                del self._waiting[1 if self._tried == 1 else 0]  # a single message that is on its way stays
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
        pause_s = self._first_pause_s
        while True:
            with self._condition:
                if self._is_closed or not self._waiting:
                    self._thread = None
                    self._condition.notify_all()
                    return
                tried = self._next()
                self._tried = len(tried)
            outcome, asked_s = self._attempt(tried)
            if outcome:
                pause_s = self._first_pause_s
                self._end(tried, outcome)
                continue
            # Jitter: many daemons may have lost the same service at the same time.
            wait_s = max(pause_s * random.uniform(0.75, 1.25), asked_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._give_up(tried, self._unix_s() + wait_s)
            with self._condition:
                self._tried = 0
                self._condition.wait_for(lambda: self._is_closed or not self._waiting, wait_s)

    def _next(self) -> list[Message]:
        """Return the first messages: all that are late, else one."""
        late_s = self._unix_s() - LATE_S
        late = list(itertools.takewhile(lambda message: message.sent_unix_s <= late_s, self._waiting))
        return late or [self._waiting[0]]

    def _attempt(self, tried: list[Message]) -> tuple[str, float]:
        """Send messages; return their outcome, or "" and the seconds that the service asks to wait."""
        self._counts.attempt(self.name)
        try:
            now_s = self._unix_s()
            is_late = now_s - tried[0].sent_unix_s >= LATE_S
            self._channel.send(late_message(tried, now_s, self._status_now) if is_late else tried[0])
        except DeliveryRefusedError as error:
            self._complain(f"{error}: the message is dropped")
            return "refused", 0.0
        except DeliveryDelayedError as error:
            self._complain(f"{error}: it is tried again")
            return "", min(error.retry_after_s or 0.0, LONGEST_RETRY_AFTER_S)
        except Exception as error:
            log.error("run %s: channel %s failed", self._run, self.name, exc_info=error)
            return "refused", 0.0
        self._thrive()
        return "sent", 0.0

    def _give_up(self, tried: list[Message], next_s: float) -> None:
        """End the messages that are too old for an attempt at ``next_s``."""
        old = [message for message in tried if next_s > message.sent_unix_s + GIVE_UP_S]
        if old:
            self._complain(f"a message is dropped: it could not be sent within {GIVE_UP_S / 60:.0f} minutes")
            self._end(old, "gave_up")

    def _end(self, ended: list[Message], outcome: str) -> None:
        """Take messages out that have an outcome. One that was dropped since then has one already."""
        with self._condition:
            identities = set(map(id, ended))
            kept = [message for message in self._waiting if id(message) not in identities]
            for _ in range(len(self._waiting) - len(kept)):
                self._counts.end(self.name, outcome)
            self._waiting = collections.deque(kept)
            self._tried = 0
            self._condition.notify_all()
        self._on_change()

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            log.warning("run %s: channel %s: %s", self._run, self.name, reason)

    def _thrive(self) -> None:
        if self._complaint:
            self._complaint = ""
            log.info("run %s: channel %s works again", self._run, self.name)
