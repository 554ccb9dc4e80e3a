"""Says once per outage that the store cannot be used, and once that it can again."""

import logging
import time
from collections.abc import Callable

from holdfast_proto.error_text import reason_of

QUIET_S = 5.0
"""Time without a failure after which an outage is over: a store that comes and goes must not fill a log.

A store may also answer reads and refuse writes.
"""


class StoreOutage:
    """Reports the outages of one process's store in its log.

    ``where``: the store's URL. ``effect``: completes "Redis at URL cannot be used (why): ...".
    """

    def __init__(
        self, log: logging.Logger, where: str, effect: str, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._where = where
        self._effect = effect
        self._monotonic_s = monotonic_s
        self._begun_s: float | None = None
        """Time of the first failure of the outage; None: there is none."""
        self._failed_s = 0.0
        """Time of the newest failure."""
        self._answered_s: float | None = None
        """Time of the first answer since then."""

    def failed(self, error: Exception) -> None:
        """Note an operation that the store has not carried out."""
        self._failed_s, self._answered_s = self._monotonic_s(), None
        if self._begun_s is None:
            self._begun_s = self._failed_s
            why = reason_of(error).rstrip(".")
            self._log.warning("Redis at %s cannot be used (%s): %s", self._where, why, self._effect)

    def answered(self) -> None:
        """Note an operation that the store has carried out."""
        if self._begun_s is None:
            return
        now_s = self._monotonic_s()
        if self._answered_s is None:
            self._answered_s = now_s
        if now_s - self._failed_s >= QUIET_S:
            self._log.warning(
                "Redis at %s can be used again, after %.1f s", self._where, self._answered_s - self._begun_s
            )
            self._begun_s = None
