"""Limits what all uploads of a node send together: a token bucket."""

import threading
import time
from collections.abc import Callable


class Bandwidth:
    """A bucket that fills with ``bytes_per_s``; 0: there is no limit.

    Whoever wants to send takes tokens from it, which may leave it in debt, and waits until the debt of those before is
    paid. Nothing is saved up: after a pause one piece goes out at once, the next at the rate again. Any thread.
    """

    def __init__(self, bytes_per_s: float = 0.0, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock_s = clock_s
        self._paid_at_s = clock_s()
        self._lock = threading.Lock()

    def take_s(self, nbytes: int) -> float:
        """Take tokens for ``nbytes`` and return how many seconds to wait before they are sent."""
        if not self._bytes_per_s:
            return 0.0
        with self._lock:
            now_s = self._clock_s()
            begin_s = max(self._paid_at_s, now_s)
            self._paid_at_s = begin_s + nbytes / self._bytes_per_s
            return begin_s - now_s
