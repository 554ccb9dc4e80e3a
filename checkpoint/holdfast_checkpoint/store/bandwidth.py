"""Limits what all uploads of a node send together: a token bucket whose level may fall below zero."""

import threading
import time
from collections.abc import Callable


class Bandwidth:
    """A bucket that fills at ``bytes_per_s``; 0 means no limit. Any thread may use it.

    A sender takes tokens for a whole piece and then waits until the debt of the senders before it is paid. So a piece
    may be larger than a second's worth, and threads are served in the order of their calls. Nothing is saved up: after
    a pause one piece goes out immediately, the next one at the rate again.
    """

    def __init__(self, bytes_per_s: float = 0.0, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock_s = clock_s
        self._paid_at_s = clock_s()
        """Time at which everything that was taken is paid."""
        self._lock = threading.Lock()

    def take_s(self, nbytes: int) -> float:
        """Take tokens for ``nbytes`` and return the seconds to wait before sending them."""
        if not self._bytes_per_s:
            return 0.0
        with self._lock:
            now_s = self._clock_s()
            begin_s = max(self._paid_at_s, now_s)
            self._paid_at_s = begin_s + nbytes / self._bytes_per_s
            return begin_s - now_s
